"""What the terminal shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_gaudi.tools.audit import findings, line_totals, text
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.audit.record import Line, Loader, Record, Step, read_all


def _line(kind: str, what: str, line: int, **others: object) -> Line:
    values = {"count": 5, "amount": 50, "steps": list(range(5))}
    return Line(
        *(kind, what, "/mine/train.py", line, "step", "", "training", "forward", False),
        **{**values, **others},  # type: ignore[arg-type]
    )


def _record(**others: object) -> Record:
    return Record(
        card="Gaudi 2",
        release="1.24.1",
        steps=[Step(launches=10, host_syncs=1) for _ in range(5)],
        lines=[
            _line("launch", "", 7),
            _line("host_sync", "aten::_local_scalar_dense", 8),
            _line("rule", "mode-on-cpu", 7),
            _line("transfer", "host_to_device", 7, amount=640),
            _line("graph", "recompiled", 9, count=2, details={"input 0: [3] was [2]": 2}),
            _line("collective", "all_reduce", 9, amount=96),
        ],
        **others,  # type: ignore[arg-type]
    )


def _show(*records: Record, status: int = 0) -> str:
    audit = Audit(("python", "train.py"), status, list(records))
    return text.render(audit, findings.find(audit))


def test_each_line_has_what_it_did() -> None:
    by_line = {each.line: each for each in line_totals.totals(_record())}
    assert (by_line[7].launches, by_line[7].fallbacks, by_line[7].bytes_copied) == (50, 5, 640)
    assert by_line[8].host_syncs == 5
    assert (by_line[9].launches, by_line[9].compilations) == (2, 2)
    assert by_line[9].collective_bytes == 96
    shown = _show(_record())
    assert "  /mine/train.py:7                                 50" in shown
    assert "  /mine/train.py:9: input 0: [3] was [2], 2 times\n" in shown


def test_a_missing_rank_is_said() -> None:
    shown = _show(_record(world_size=2, is_ended=True))
    assert "No record of rank 1: it was killed, or it did not end with the rest." in shown


@pytest.mark.parametrize(
    ("num_steps", "said"),
    [
        (5, "5 steps, the first 3 of them not judged; 1 rank on simulated Gaudi 2"),
        (2, "2 of at least 4 steps, so none is judged by itself; 1 rank"),
        (0, "no step of an optimizer, so all of it is judged; 1 rank"),
    ],
)
def test_the_head_says_what_was_judged(num_steps: int, said: str) -> None:
    record = _record()
    del record.steps[num_steps:]
    assert said in _show(record)


def test_a_program_that_was_ended_has_no_status_of_its_own() -> None:
    """Its launcher may make one of ranks that leave."""
    ended = _record(is_ended=True)
    assert Audit(("torchrun",), 1, [ended]).status == 0
    assert Audit(("torchrun",), 1, [ended, _record(rank=1, world_size=2)]).status == 1
    assert "exited with 1" in _show(_record(), status=1)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    loader = Loader("list", "/mine/train.py", 3, "pad", "training", lengths={8: 2, 16: 1})
    records = [_record(loaders=[loader]), _record(rank=1, pid=7)]
    for record in reversed(records):
        record.write(tmp_path)
    assert read_all(tmp_path) == records


def test_json_has_the_findings_with_names_of_their_weights() -> None:
    audit = Audit(("python", "train.py"), 0, [_record()])
    report = json.loads(text.to_json(audit, findings.find(audit)))
    assert (report["schema"], report["num_steps"], report["num_warm_up_steps"]) == (1, 5, 3)
    weights = {each["rule"]: each["weight"] for each in report["findings"]}
    assert weights == {
        "recompilation": "compiles",
        "mode-on-cpu": "falls_back",
        "item-waits": "waits",
    }
