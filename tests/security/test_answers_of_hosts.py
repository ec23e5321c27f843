"""What another host prints is an answer of the types that one has, or none."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from lightning_gaudi.releases import numbers
from lightning_gaudi.tools.doctor import mode
from lightning_gaudi.tools.doctor.comparison import merge
from lightning_gaudi.tools.doctor.findings import Report, error, ok, table
from lightning_gaudi.tools.doctor.hosts import _Answers
from lightning_gaudi.tools.doctor.launchers import named_hosts, place
from lightning_gaudi.tools.doctor.machine import Answer
from lightning_gaudi.tools.doctor.wire_format import Joiner, cut

REPORT = Report([error("port", "taken", "Choose another."), ok("mode", "lazy")], {"torch": "2.11"})
MESSAGE = {
    "sender": "a-0",
    "host": "a",
    "rank": 0,
    "size": 1,
    "is_first": True,
    "report": REPORT.as_json(),
}


def _taken(message: Any) -> _Answers:
    answers = _Answers()
    answers.take(message)
    assert isinstance(answers.is_complete(), bool)
    if answers.done:
        table(merge([*answers.done.values()]))
    return answers


def test_an_answer_is_taken() -> None:
    assert _taken(dict(MESSAGE)).done["a-0"].report == REPORT
    hello = _taken({**MESSAGE, "report": None})
    assert (list(hello.begun), hello.done) == (["a-0"], {})


_WRONG: dict[str, list[Any]] = {
    "sender": [None, 1, [], {}],
    "host": [None, 3, ["a"]],
    "rank": ["0", -1, 2**16, True, 1.5, 10**400],
    "size": ["1", -1, 10**9, [], False],
    "is_first": [0, "no", None],
    "report": [
        *(1, "x", [], {}, {"findings": [], "facts": None}, {"findings": [1], "facts": {}}),
        *({"findings": {}, "facts": {}}, {"findings": [{}], "facts": {}}),
        *({"findings": [], "facts": {"a": 1}}, {"findings": [], "facts": ["ab"]}),
        *(
            {"findings": [{"level": "ok", "area": "a", "found": "b", **change}], "facts": {}}
            for change in (
                *({"level": "worst"}, {"level": ["ok"]}, {"area": 3}, {"found": None}),
                *({"fix": 1}, {"where": "ab"}, {"where": [1]}, {"__class__": "x"}),
            )
        ),
    ],
    "\x1b[2J": [1],
}


@pytest.mark.parametrize("name", _WRONG)
def test_an_answer_of_other_types_is_none(name: str) -> None:
    for wrong in _WRONG[name]:
        answers = _taken({**MESSAGE, name: wrong})
        assert not answers.done, wrong
        assert not answers.begun, wrong
        without = {key: value for key, value in MESSAGE.items() if key != name}
        assert not _taken(without).done or name not in MESSAGE
    for wrong in (None, 1, "x", [], {}):
        assert not _taken(wrong).done


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "text",
    [
        *("AAAA", "é", "====", "eJw", _packed(b"[" * 100_000), _packed(b"NaN"), _packed(b"\xff")),
        *(_packed(b""), _packed(b'{"a": 1}')[:-8]),
    ],
)
def test_a_line_that_is_no_message_is_none(text: str) -> None:
    joiner = Joiner("token")
    assert joiner.add(f"@lightning-gaudi-doctor token a-0 1/1 {text}") is None
    lines = list(cut("token", "a-0", MESSAGE))
    assert [joiner.add(line) for line in lines][-1] == MESSAGE


def test_a_message_takes_no_more_memory_than_a_report() -> None:
    """Of 100 MB of spaces the line has 130,000 characters."""
    bomb = _packed(b" " * 100_000_000 + b"1")
    assert Joiner("token").add(f"@lightning-gaudi-doctor token a-0 1/1 {bomb}") is None


class _Machine:
    def __init__(self, text: str) -> None:
        self._text = text

    def run(self, *_: str, timeout_s: float) -> Answer:
        return Answer(self._text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "[]", "{}", "null", "[" * 100_000, '{"cards": "8", "reason": ""}', "\x1b[2J"),
        *('{"cards": 8}', '{"cards": 8, "reason": "", "lazy": 3}', '{"cards": 1e999}'),
    ],
)
def test_what_the_probe_prints_may_be_anything(text: str) -> None:
    machine: Any = _Machine(text)
    found, problem = mode._probe(machine)
    assert found is None
    assert problem.startswith("an answer that is none: ")
    assert problem.isprintable()
    machine = _Machine(json.dumps({"cards": 8, "reason": "", "lazy": True}))
    found, problem = mode._probe(machine)
    assert found is not None
    assert (found.cards, found.lazy, problem) == (8, True, "")


def test_numbers_of_any_length_end(tmp_path: Any) -> None:
    many = "9" * 5000
    assert place({"RANK": many, "WORLD_SIZE": "2"}).rank is None
    assert place({"RANK": "1", "WORLD_SIZE": many}).size is None
    assert len(named_hosts(["srun", "-w", "gaudi[1-999999999]"])) < 20_000
    assert named_hosts(["srun", "-w", f"gaudi[1-{many}]"]) == []
    assert numbers(f"{many}.1")
    file = tmp_path / "hosts"
    file.write_bytes(b"gaudi1\xff slots=8\ngaudi2\n")
    assert "gaudi2" in named_hosts(["mpirun", "--hostfile", str(file)])
