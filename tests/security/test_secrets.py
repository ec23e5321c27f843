"""Passwords, tokens and signatures in what is shown, and words that a remote shell reads."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_gaudi.tools.audit import formatting
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.doctor import hosts, variables
from lightning_gaudi.tools.doctor.findings import Report, error, table
from lightning_gaudi.tools.doctor.launchers import parses_again
from lightning_gaudi.tools.doctor.machine import Machine
from lightning_gaudi.untrusted import HIDDEN, hide_secrets, shown_command
from recipes.common.sections import section, table as recipes_table

SECRET = "s3cr3tS3cr3tS3cr3t"
TEXTS = (
    f"http://user:{SECRET}@proxy:3128",
    f"HABANA_PROXY=https://user:{SECRET}@proxy",
    f"https://{SECRET}@host/path",
    f"s3://key:{SECRET}/x@bucket",
    f"user:{SECRET}@proxy.example:3128",
    f"http://user:a@{SECRET}@host",
    f"https://b.s3.amazonaws.com/x?X-Amz-Expires=60&X-Amz-Signature={SECRET}",
    f"https://storage.googleapis.com/x?X-Goog-Signature={SECRET}&x=1",
    f"https://a.blob.core.windows.net/c?sv=2020-08-04&sig={SECRET}%3D",
    f"https://b.s3.amazonaws.com/x?AWSAccessKeyId=a&Signature={SECRET}",
    f"https://host/x?a=1&access_token={SECRET}",
    f"wss://host/#token={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"curl -H 'authorization: Basic {SECRET}'",
    f"X-Api-Key: {SECRET}",
    f"HF_TOKEN={SECRET}",
    f"export WANDB_API_KEY='{SECRET}'; exec",
    f"--password={SECRET}",
    f"{{'api_key': '{SECRET}'}}",
    f'{{"client_secret": "{SECRET}"}}',
    f"hf_{SECRET}",
    f"value ghp_{SECRET} value",
    f"sk-{SECRET}",
    "AKIA" + SECRET.upper(),
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
)
HARMLESS = (
    "PT_HPU_LAZY_MODE=1",
    "TOKENIZERS_PARALLELISM=true",
    "--data.tokenizer=bert-base-uncased num_tokens=3 max_tokens_per_step=4",
    "http://host:8080/a?page=3",
    "tcp://10.0.0.1:29500",
    "git@github.com:owner/name.git",
    "--model.num_keys=3 monkey=4",
    "/data/run@3/version_0",
)
COMMANDS = (
    ["mpirun", "-np", "2", "-x", f"MINE={SECRET}", "--host", "a,b"],
    ["mpiexec", "-genv", "MINE", SECRET, "-n", "2"],
    ["srun", f"--export=ALL,MINE={SECRET},OTHER={SECRET}", "--nodes=2"],
    ["srun", "--export", f"ALL,MINE={SECRET}"],
    ["docker", "run", "-e", f"MINE={SECRET}", "--env", f"MINE={SECRET}", f"--env=MINE={SECRET}"],
    ["sshpass", "-p", SECRET, "ssh", "host"],
    ["sshpass", f"-p{SECRET}", "ssh", "host"],
    ["curl", "-u", f"me:{SECRET}", "--token", SECRET, f"--api-key={SECRET}"],
    ["bash", "-c", f"export HF_TOKEN={SECRET}; exec {{}}"],
)


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_of_a_text_are_hidden(text: str) -> None:
    assert SECRET.lower() not in hide_secrets(text).lower()
    assert "<not shown>" in hide_secrets(text)
    assert hide_secrets(hide_secrets(text)) == hide_secrets(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert hide_secrets(text) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_shown_without_what_it_hands_on(command: list[str]) -> None:
    assert SECRET not in shown_command(command)
    assert shown_command(command).startswith(command[0])


def test_no_report_shows_one() -> None:
    """The doctor's table and JSON, the audit's headline, a recipe's table."""
    environment = {"HABANA_PROXY": TEXTS[0], "PT_X": f"hf_{SECRET}", "PT_URL": TEXTS[6]}
    shown = variables.settings(Machine(environment))
    assert set(shown) == set(environment)
    report = Report([error("x", text, text) for text in TEXTS], {"variable A": TEXTS[0]})
    answers = hosts._Answers(status=1, said=f"failed with {TEXTS[15]}")
    report.findings += [each for words in COMMANDS for each in hosts._silent(answers, words, 1.0)]
    audit = Audit(command=tuple(COMMANDS[0]), program_status=0, records=[])
    texts = [
        str(shown),
        table(report),
        json.dumps(report.as_json()),
        formatting.command(audit),
        recipes_table([section("x", [("url", TEXTS[0])])]),
    ]
    for text in texts:
        assert SECRET.lower() not in text.lower()


@pytest.mark.parametrize(
    ("launcher", "is_parsed"),
    [
        ("ssh host", True),
        ("sudo -u me /usr/bin/ssh -p 22 host", True),
        ("timeout 60 pdsh -w a,b", True),
        ("clush -w a", True),
        ("mpirun --mca plm_rsh_agent ssh -np 2", False),
        ("srun --nodes=2", False),
        ("docker exec ssh", False),
        ("bash -c {}", False),
    ],
)
def test_launchers_whose_words_a_shell_reads_again(launcher: str, is_parsed: bool) -> None:
    assert parses_again(launcher.split()) is is_parsed


def test_a_remote_shell_gets_the_words_as_they_are(tmp_path: Path) -> None:
    """A script stands for ssh: it joins its words, and a shell reads them."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/bash\nshift\nexec bash -c "$*"\n')
    ssh.chmod(0o755)
    evil = f"--checkpoints=/data/my runs;touch {tmp_path}/ran $(touch {tmp_path}/ran) 'x"
    for launcher in ([str(ssh), "host"], [str(ssh), "host", "env", "A=1", "{}"]):
        command = hosts.command(launcher, [hosts.python(), evil])
        # What would run gets these words.
        place = command.index(shlex.quote(hosts.python()))
        printing = [*command[:place], shlex.quote(sys.executable), "-c"]
        printing += [shlex.quote("import sys; print(sys.argv[1:])"), *command[place + 1 :]]
        result = subprocess.run(printing, capture_output=True, text=True, check=True)
        assert evil in eval(result.stdout)
    assert not (tmp_path / "ran").exists()
    assert hosts.command(["srun"], [hosts.python(), evil])[-1] == evil
    assert os.access(ssh, os.X_OK)


@pytest.mark.parametrize("part", ["a", "a-", "a:", "http://", "eyJ", "a%+-"])
def test_long_texts_are_read_once(part: str) -> None:
    """Each place of these began a search to the end, which took hours: what hosts print is long."""
    assert hide_secrets(f"{part * 20_000} hf_abcdefghijklmnopqrst").endswith(HIDDEN)


@pytest.mark.parametrize(
    "text",
    ["0123456789abcdef0123456789abcdef01234567", "wandb_v1_abcdefghijklmnopqrstuvwx"],
)
def test_keys_of_wandb_are_known(text: str) -> None:
    assert hide_secrets(f"a {text} b") == f"a {HIDDEN} b"
    assert "abc==" not in hide_secrets("DefaultEndpointsProtocol=https;AccountKey=abc==;x=y")
