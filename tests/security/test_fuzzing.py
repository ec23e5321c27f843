"""Every parser gets damaged inputs: it refuses them in words of ours, and stays within its limits.

See `tests.security.fuzzing`, which has the parsers and what is done to their inputs.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.security.fuzzing import sources, target, wild
from tests.security.fuzzing.targets import EXEMPT, TARGETS

NUM_INPUTS = 20_000


def _shown(outcome: target.Outcome) -> str:
    return "\n".join(map(str, outcome.failures))


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_refused_in_words_of_ours(name: str) -> None:
    outcome = target.explore(name, TARGETS[name].num_quick)
    assert not outcome.failures, _shown(outcome)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_twenty_thousand_damaged_inputs_are_refused_in_words_of_ours(name: str) -> None:
    outcome = target.run(name, NUM_INPUTS)
    assert not outcome.failures, _shown(outcome)
    assert outcome.num_inputs == NUM_INPUTS


def test_every_reader_of_the_code_has_a_target() -> None:
    found = sources.readers()
    covered = {name for each in TARGETS.values() for name in each.reads}
    missing = {name: calls for name, calls in found.items() if name not in covered | EXEMPT.keys()}
    assert not missing, "They read what others wrote, and have no target in tests/security/fuzzing."
    gone = (covered | EXEMPT.keys()) - found.keys()
    assert not gone, "Targets or exemptions name what reads nothing, or is not there any more."
    assert not covered & EXEMPT.keys(), "They have a target, and need no exemption."


def test_readers_are_found_by_their_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import json, os
def reads(path):
    return json.loads(path.read_text())
class Store:
    def get_number(self):
        value = os.environ["X"]
        return int(value)
def writes(path):
    path.open("w").write("x")
    return int("3")
"""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(source)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    assert sources.readers(("package",)) == {
        "package.module:reads": {"json.loads", ".read_text"},
        "package.module:Store.get_number": {"a number of the environment"},
    }


def _register(monkeypatch: pytest.MonkeyPatch, parse: Any, check: Any = None) -> None:
    def damage(random: Random) -> bytes:
        return wild.damaged_bytes(random, b"0123456789")

    found = target.Target(
        "x", lambda folder: target.Parser(damage, parse, check), (), (ValueError,), (), 10
    )
    monkeypatch.setitem(target.TARGETS, "x", found)


def _hang(given: bytes) -> None:
    while True:
        pass


def _take_memory(given: bytes) -> bytes:
    return bytes(2**31)


def _crash(given: bytes) -> None:
    import ctypes

    ctypes.string_at(0)


def _refuse(given: bytes) -> None:
    raise ValueError("not in words of this project's")


@pytest.mark.parametrize(
    ("parse", "expected"),
    [
        (_hang, "no end within"),
        (_take_memory, "MemoryError"),
        (_crash, "killed by SIGSEGV"),
        (_refuse, "ValueError"),
        (lambda given: int(given + b"x"), "ValueError"),
        (lambda given: {}[given], "KeyError"),
    ],
)
def test_what_a_parser_may_not_do_is_noticed(
    monkeypatch: pytest.MonkeyPatch, parse: Any, expected: str
) -> None:
    if parse is _hang:  # which else takes as long as an input may
        monkeypatch.setattr(target, "MAX_SECONDS", 0.3)
        monkeypatch.setattr(target, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(target, "_MAX_KILLED", 1)
    _register(monkeypatch, parse)
    for act in (target.run, target.explore):
        outcome = act("x", 3)
        assert outcome.failures
        assert outcome.failures[0].what.startswith(expected)


def test_an_error_of_ours_is_none_and_a_wrong_result_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_gaudi.untrusted import parse_json

    _register(monkeypatch, lambda given: parse_json(b"[" * 99_999))
    outcome = target.run("x", 5)
    assert (outcome.num_inputs, outcome.num_raised, outcome.failures) == (5, 5, [])

    def check(given: bytes, found: Any) -> None:
        raise target.WrongResultError("another value")

    _register(monkeypatch, lambda given: given, check)
    assert target.run("x", 5).failures[0].what == "WrongResultError: another value"
