"""`python -m benchmarks`: its words, its status, and one benchmark for real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.harness import results
from benchmarks.harness.rows import RATIO, Row


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as error:
        command.main(words)
    assert error.value.code == 2
    return capsys.readouterr().err


def test_an_unknown_benchmark_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    said = _refused(capsys, "dpp_step")
    assert "there is no benchmark 'dpp_step'; choose from: ddp_step" in said


def test_quick_figures_do_not_go_where_figures_are_quoted_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _refused(capsys, "--quick", "--results", str(results.FOLDER))
    assert "--quick measures too little for benchmarks/results" in said


def test_the_list_has_a_line_a_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *command.BENCHMARKS
    ]


@pytest.mark.parametrize(("figure", "status"), [(1.0, 0), (1.2, 1)])
def test_the_status_says_whether_limits_are_kept(
    figure: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("a", figure, RATIO, limit=1.1)]
    monkeypatch.setattr(command, "_measure", lambda *_: rows)
    words = ["pictures", "--results", str(tmp_path)]
    assert command.main(words) == status
    assert command.main([*words, "--quick"]) == 0
    [result] = results.read(tmp_path)
    assert result.runs[0].rows == rows
    assert result.runs[0].is_quick
    assert "| a |" in (tmp_path / "README.md").read_text()


def test_a_benchmark_that_fails_is_said_with_its_last_words_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert command.main(["import_cost", "token_efficiency", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "import_cost ended with status 1 in eager mode" in said
    assert "token_efficiency ended with status 1 in eager mode" in said
    assert "Not measured yet" in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_two_benchmarks_are_measured_on_simulated_cards(tmp_path: Path) -> None:
    assert (
        command.main(["simulator_vs_cpu", "graph_counts", "--quick", "--results", str(tmp_path)])
        == 0
    )
    on_cpu, counts = results.read(tmp_path)
    assert len(on_cpu.rows()) == 4
    assert [row.name.partition(",")[0] for row in counts.rows()] == ["lazy", "lazy"]
    assert all(row.figure > 0 and row.num_rounds == 3 for row in (*on_cpu.rows(), *counts.rows()))
    assert (tmp_path / "simulator.svg").exists()
