"""Servers of buckets for the tests of stores."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.ports import free_port

_KEY = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """A server on this machine, with an empty bucket; the variables that lead to it."""
    with _server({}) as env:
        _client("s3", env).create_bucket(Bucket="bucket")
        yield env


@pytest.fixture
def read_only_bucket() -> Iterator[dict[str, str]]:
    """The same for a user who may read it, and not write to it."""
    with _server({"INITIAL_NO_AUTH_ACTION_COUNT": "4"}) as env:
        _client("s3", env).create_bucket(Bucket="bucket")
        users = _client("iam", env)
        users.create_user(UserName="reader")
        key = users.create_access_key(UserName="reader")["AccessKey"]
        reading = {"Effect": "Allow", "Action": ["s3:List*", "s3:Get*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [reading]})
        users.put_user_policy(UserName="reader", PolicyName="reading", PolicyDocument=policy)
        yield env | {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }


def _client(name: str, env: dict[str, str]) -> Any:
    import boto3

    return boto3.client(
        name,
        endpoint_url=env["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )


@contextlib.contextmanager
def _server(settings: dict[str, str]) -> Iterator[dict[str, str]]:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        command,
        env=os.environ | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < end
            time.sleep(0.1)
        yield _KEY | {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
    finally:
        server.terminate()
        server.wait()
