"""What the watching processes of hosts take from each other, and from strangers."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lightning_gaudi.reliability.links import MAX_BYTES, Links, listen

KEY = b"k" * 32


@pytest.fixture
def hub() -> Iterator[tuple[Links, tuple[str, int]]]:
    listener = listen("127.0.0.1", is_one_machine=True)
    links = Links(KEY, 0, 3, listener=listener)
    yield links, listener.getsockname()
    links.finish({})
    listener.close()


def _received(links: Links, *others: Links) -> list[tuple[int, dict[str, Any]]]:
    """What comes within a moment, while the others go on too."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        for other in others:
            other.receive()
        if found := links.receive():
            return found
        time.sleep(0.01)
    return []


def _framed(key: bytes, message: Any) -> bytes:
    text = json.dumps(message).encode()
    data = hmac.digest(key, text, "sha256") + text
    return struct.pack("<I", len(data)) + data


def test_hosts_hear_each_other(hub: tuple[Links, tuple[str, int]]) -> None:
    links, address = hub
    other = Links(KEY, 2, 3, address=address)
    other.receive()
    other.send({"x": 1})
    [(host, message)] = _received(links, other)
    assert (host, message["x"]) == (2, 1)
    links.send({"verdict": "y" * 100_000})
    [(host, message)] = _received(other, links)
    assert (host, len(message["verdict"])) == (0, 100_000)
    other.finish({})


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", MAX_BYTES + 1) + b"x",
        struct.pack("<I", 0),
        struct.pack("<I", 40) + bytes(40),
        _framed(b"another key", {"host": 1, "number": 1}),
        _framed(KEY, [1]),
    ],
)
def test_a_stranger_is_heard_no_further(data: bytes, hub: tuple[Links, tuple[str, int]]) -> None:
    links, address = hub
    with socket.create_connection(address) as stranger:
        stranger.sendall(data)
        stranger.settimeout(0.01)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert links.receive() == []
            try:
                assert stranger.recv(1) == b""
                break
            except ConnectionResetError:
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("it is still connected")


@pytest.mark.parametrize("host", [0, 3, -1, True, "1", None])
def test_a_message_comes_from_another_host(
    host: object, hub: tuple[Links, tuple[str, int]]
) -> None:
    links, address = hub
    with socket.create_connection(address) as other:
        other.sendall(_framed(KEY, {"host": host, "number": 1}))
        other.sendall(_framed(KEY, {"host": 1, "number": 1, "is": "the next"}))
        [(_, message)] = _received(links)
        assert message["is"] == "the next"


def test_a_message_is_taken_once(hub: tuple[Links, tuple[str, int]]) -> None:
    links, address = hub
    message = _framed(KEY, {"host": 1, "number": 5, "is": "first"})
    for data in (message, message + _framed(KEY, {"host": 1, "number": 6, "is": "second"})):
        with socket.create_connection(address) as other:
            other.sendall(data)
            [(_, found)] = _received(links)
    assert found["is"] == "second"


def test_strangers_who_say_nothing_leave_room_for_hosts(
    hub: tuple[Links, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_gaudi.reliability.links._STRANGER_S", 0.1)
    links, address = hub
    strangers = [socket.create_connection(address) for _ in range(40)]
    other = Links(KEY, 1, 3, address=address)
    end, found = time.monotonic() + 20, []
    while not found and time.monotonic() < end:
        other.receive()
        other.send({"x": 1})
        found = links.receive()
        time.sleep(0.01)
    assert found
    for stranger in strangers:
        stranger.close()
    other.finish({})
