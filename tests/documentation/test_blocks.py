"""Every block of code that a page shows runs, or says why not."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.forked import fork_python

from .blocks import GIVEN, PAGES, ROOT, Block, blocks_of, shell_environment

pytestmark = pytest.mark.docs

_SHOWN = [page for page in PAGES if blocks_of(page)]
_FAST = ("README.md", "docs/tutorials/first-run.md", "docs/reference/settings.md")
_LIMIT_S = 1200


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(4000)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if _name(page) in _FAST else [pytest.mark.slow])
        for page in _SHOWN
    ],
    ids=_name,
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    before = ""
    for block in blocks_of(page):
        if block.kind == "not run":
            continue
        if block.kind == "run by":
            test, _, word = block.words.partition(": ")
            assert word, f"{block}: no word is said that {test} has"
            assert word in (ROOT / test).read_text(), f"{block}: {test} does not have {word!r}"
            continue
        said = _run(block, before if block.kind == "run on" else "", tmp_path)
        before = block.code
        missing = [line for line in block.output if " ".join(line.split()) not in said]
        assert not missing, f"{block} does not print {missing}, but:\n{said}"


def test_at_least_eighty_five_of_a_hundred_blocks_run() -> None:
    every = [block for page in PAGES for block in blocks_of(page)]
    reasons = {str(each): each.words for each in every if each.kind in ("not run", "run by")}
    assert all(reasons.values()), "each says why it is not run"
    share = 1 - len(reasons) / len(every)
    assert share >= 0.85, f"{share:.1%} of {len(every)} run: {reasons}"


def _run(block: Block, before: str, folder: Path) -> str:
    """Runs a block in a page's folder; returns what it prints, with single spaces."""
    given, _, cards = block.words.partition(", ")
    num_cards = cards.removesuffix(" cards")
    commands = ""
    if given.endswith(".md"):
        _write_files(ROOT / given, folder)
    elif given:
        shutil.copytree(GIVEN / given, folder, dirs_exist_ok=True)
        before = before or _read(given, "before.py")
        commands = _read(given, "before.sh")
    if block.language == "yaml":
        assert yaml.safe_load(block.code) is not None, block
        return ""
    if block.language == "bash":
        # A finding of ours is what the page is about.
        is_expected = block.output or "audit" in block.code or "doctor" in block.code
        highest_status = 1 if is_expected else 0
        return _run_commands(block, commands + block.code, folder, num_cards, highest_status)
    compile(block.code, str(block), "exec")
    if block.title.endswith(".py"):
        (folder / block.title).write_text(block.code)
    if block.title:
        return ""
    source = f"{before}\n{block.code}"
    if num_cards:
        (folder / "block.py").write_text(source)
        return _run_commands(block, f"{commands}\npython block.py", folder, num_cards)
    env = {"LIGHTNING_GAUDI_SIMULATE": "8", "HF_HUB_OFFLINE": "1"}
    done = fork_python(source, cwd=folder, env=env, timeout=_LIMIT_S)
    return " ".join(f"{done.stdout} {done.stderr}".split())


def _read(given: str, name: str) -> str:
    path = GIVEN / given / name
    return path.read_text() if path.is_file() else ""


def _write_files(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.title.endswith(".py"):
            (folder / block.title).write_text(block.code)


def _run_commands(
    block: Block, commands: str, folder: Path, num_cards: str, highest_status: int = 0
) -> str:
    """Runs them as a shell does, on a server without a card or with some."""
    env = shell_environment(
        PYTHONWARNINGS="ignore",
        COLUMNS="100",
        REPOSITORY=str(ROOT),
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
    )
    if num_cards:
        env["LIGHTNING_GAUDI_SIMULATE"] = num_cards
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=_LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the ranks, too
        process.communicate()
    status = process.returncode  # below 0 if a signal has ended the shell
    assert 0 <= status <= highest_status, f"{block} exits with {status}:\n{said}"
    return " ".join(said.split())
