"""Each kind of message has an example that says one of its messages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.documentation_messages import BEFORE, Kind, kinds, messages
from tests.helpers.forked import fork_python

from .blocks import shell_environment

pytestmark = [pytest.mark.docs, pytest.mark.slow]
_FEWEST_LETTERS = 6
"""Of what a message says whatever varies, so that it is known by it."""


def _says(said: str, message: str) -> bool:
    """Tells if there are, in their order, all parts of a message that do not vary."""
    parts = [part for each in message.split("…") if (part := " ".join(each.split()))]
    if len(re.sub("[^A-Za-z]", "", message)) < _FEWEST_LETTERS:
        return False
    for part in parts:
        _, found, said = said.partition(part)
        if not found:
            return False
    return True


def _said(kind: Kind, folder: Path) -> str:
    """Returns what an example, or a command, says."""
    if not (kind.run or kind.cards):
        env = {"LIGHTNING_GAUDI_SIMULATE": "2", **kind.env}
        done = fork_python(BEFORE + kind.example, cwd=folder, env=env, check=False)
        return f"{done.stdout}\n{done.stderr}"
    (folder / "example.py").write_text(BEFORE + kind.example)
    command = kind.run or f"lightning-gaudi simulate --cards {kind.cards} -- python example.py"
    env = shell_environment(COLUMNS="1000", **kind.env)
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    return process.stdout


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.title)
def test_an_example_says_a_message_of_its_kind(kind: Kind, tmp_path: Path) -> None:
    said = " ".join(_said(kind, tmp_path).split())
    assert any(_says(said, each.words) for each in messages() if each.kind == kind), said
