"""A simulated card is changed on purpose, and a run finds each change and no other."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path

import pytest

from lightning_gaudi import measured_card
from lightning_gaudi.measured_card import VARIABLE
from lightning_gaudi.simulator.settings import CARD, RELEASE, SERVER, SIMULATE
from lightning_gaudi.tools.verify import faults, report, run
from lightning_gaudi.tools.verify.faults import FAULTS
from tests.tools.verify import changed

pytestmark = pytest.mark.slow


def _verify(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...], **env: str
) -> run.Verification:
    for name in (CARD, RELEASE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(SERVER, f"verify-{uuid.uuid4()}")
    monkeypatch.setenv(SIMULATE, "2")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return run.verify(run.Options(parts, is_quick=True, patience_s=60.0))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_change_is_found_and_no_other(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, memory = changed.draw(seed, 40), changed.memory(seed)
    path = changed.write(tmp_path / "card.json", rules, memory)
    found = _verify(monkeypatch, ("rules", "memory"), **{VARIABLE: str(path)})
    assert found.lost == []
    differing = {
        row["key"]: (row["mode"], row["found"])
        for row in found.rules
        if row["found"] != row["expected"]
    }
    assert differing == rules
    assert found.memory == memory


@pytest.mark.parametrize("last", [False, True], ids=["ends", "what is left"])
def test_changed_ends_of_programs_are_found(
    last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one alone: on such a card each program that is killed leaves one that is taken."""
    done = FAULTS[-1:] if last else FAULTS[:-1]
    wanted = {fault.key: changed.FAULTS[fault.key] for fault in done}
    path = changed.write(tmp_path / "card.json", {}, None, wanted)
    monkeypatch.setattr(run, "_HANG_S", 8.0)
    monkeypatch.setattr(faults, "FAULTS", done)
    found = _verify(monkeypatch, ("faults",), **{VARIABLE: str(path)})
    assert {row["key"]: row["found"] for row in found.faults} == wanted
    assert len(report.differences(found)) == len(wanted)


def test_ctrl_c_is_noticed_where_the_shell_has_started_the_run_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt = next(fault for fault in FAULTS if fault.key == "interrupt")
    monkeypatch.setattr(faults, "FAULTS", (interrupt,))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found = _verify(monkeypatch, ("faults",))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert [row["found"] for row in found.faults] == ["caught"]


def test_a_card_that_is_as_the_tables_say_is_told_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _verify(monkeypatch, run.PARTS)
    assert found.lost == []
    assert report.differences(found) == []
    assert len(found.rules) >= 85
    assert {row["key"] for row in found.faults} == set(changed.FAULTS)
    assert set(found.figures) == {
        *("allocations", "launches", "compile", "matmuls", "operators", "copies"),
        *("collectives", "steps"),
    }
    text = report.render(found, "card.json")
    assert len(text.splitlines()) <= report.MAX_LINES
    assert "nothing is otherwise than the tables say" in text
    # What is written is what is read.
    parsed = measured_card.parse(json.dumps(found.as_json()), Path("card.json"))
    assert parsed.rules == {row["key"]: {row["mode"]: row["found"]} for row in found.rules}
