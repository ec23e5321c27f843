"""The table that `make faults` prints."""

from __future__ import annotations

from tests.faults.rows import FAULTS, Table


def test_it_has_a_row_for_each_fault_with_what_was_measured() -> None:
    table = Table()
    table.add(6, "50 of 50 found")
    table.add(6, "whole and in shards")
    table.fail(11)
    lines = table.lines()
    assert len(lines) == len(FAULTS) == 22
    assert lines[5].split("  ")[-1].strip() == "50 of 50 found; whole and in shards"
    assert "holds" in lines[5]
    assert "FAILS" in lines[10]
    assert "not run" in lines[0]


def test_long_figures_go_on_below() -> None:
    table = Table()
    table.add(1, " ".join(["figure"] * 30))
    first, second, *_ = table.lines()
    assert first.startswith(" 1  ")
    assert second.strip().startswith("figure")
