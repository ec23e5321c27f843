"""Results as files, a page and plots; those of this repository are what the page says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import overview, plots, report, results
from benchmarks.harness.catalog import BENCHMARKS, FOLDER, GROUPS
from benchmarks.harness.results import Result, Run
from benchmarks.harness.rows import RATIO, Row, ratio

ROWS = [
    ratio("step < one", [3.0, 3.3, 2.7], [2.0, 2.0, 2.0], limit=1.25),
    ratio("tokens", [9.0, 9.0, 9.9], [2.0, 2.0, 2.0], limit=4.0, is_floor=True),
    Row("graphs", 0, "graphs", limit=0),
    Row("launches", 11, "launches a step", limit=16),
]


def _run(rows: list[Row] = ROWS, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "mode": "eager",
        "date": "2026-01-02 03:04",
        "seconds": 12.3,
        "load_average": 0.05,
        "other_cores": 0.01,
        "is_busy": False,
        "is_quick": False,
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 7.7, "os": "Linux 6"},
        "versions": {"torch": "2.13.0", "commit": "abc"},
    }
    return Run(rows=rows, **fields | changes)


def test_results_come_back_from_their_files(tmp_path: Path) -> None:
    result = Result("pictures", [_run()])
    result.write(tmp_path)
    assert results.read(tmp_path) == [result]
    assert not results.is_kept([result])


def test_the_page_has_figures_limits_machine_and_what_is_missing() -> None:
    page = report.render([Result("pictures", [_run()])])
    row = (
        "| step < one | 1.50 x | 1.43 to 1.57 | at most 1.25, missed | 3 | 3.00 s against 2.00 s |"
    )
    assert row in page
    assert "| tokens | 4.50 x | 4.50 to 4.72 | at least 4 | 3 |" in page
    assert "1. A CPU, 2 cores, 7.7 GiB, Linux 6; torch 2.13.0, commit abc" in page
    assert "| `pictures` | 2026-01-02 03:04 | 12 s | 0.05 | 0.01 | 1 |" in page
    assert "Not measured yet: `simulator_vs_cpu`" in page
    assert "**" not in page


def test_the_page_says_what_is_doubtful() -> None:
    page = report.render([Result("pictures", [_run(is_busy=True, other_cores=1.5)])])
    assert "**Others used the machine meanwhile, see the end: `pictures`.**" in page
    assert "three rounds" in report.render([Result("pictures", [_run(is_quick=True)])])


def test_rows_say_their_mode_where_there_are_two() -> None:
    rows = Result("generation", [_run(), _run(mode="lazy")]).rows()
    assert [row.name for row in rows[::4]] == ["eager, step < one", "lazy, step < one"]


def test_a_plot_has_each_figure_and_limit_and_no_date() -> None:
    text = plots.draw("Texts", ROWS)
    ET.fromstring(text)
    assert plots.draw("Texts", ROWS) == text
    written = re.findall(r">([^<>]+)</text>", text)
    assert {"1.50", "4.50", "11", "step &lt; one", "tokens", "launches"} <= set(written)
    assert "graphs" not in written
    assert not plots.is_drawn([ROWS[2]])


def test_the_page_begins_with_what_ours_is_compared_with() -> None:
    speed = Row(
        "batch 1: tokens a second, times those of generate", 0.5, RATIO, detail="1 against 2"
    )
    time = Row(
        "8 steps, 4 pictures, against diffusers",
        0.8,
        RATIO,
        quartiles=(0.5, 1.0),
        detail="4 s against 5 s",
    )
    found = [
        Result("pictures", [_run([time, *ROWS])]),
        Result("generation", [_run([speed, Row("batch 1: launch", 1.0, "a token")], mode="lazy")]),
    ]
    generation, pictures = overview.bars(found)
    assert (generation.times, pictures.times, pictures.quartiles) == (0.5, 1.25, (1.0, 2.0))
    assert overview.bars([Result("launches", [_run()])]) == []
    page = report.render(found)
    assert page.index("![") < page.index("\nRatios are marked")
    text = overview.draw([generation, pictures])
    ET.fromstring(text)
    assert overview.draw([generation, pictures]) == text
    assert {
        "0.50 x (1 against 2 tokens a second)",
        "1.25 x (4 s against 5 s)",
        overview.CAUTION,
    } <= set(re.findall(r">([^<>]+)</text>", text))


def test_each_comparison_of_the_overview_is_of_a_row_here() -> None:
    for kind in overview._KINDS:
        assert kind.benchmark in BENCHMARKS
        stored = [each for each in results.read(results.FOLDER) if each.benchmark == kind.benchmark]
        assert not stored or overview.bars(stored), f"{kind.pattern!r} names no row"


def test_the_page_here_is_that_of_the_results_here() -> None:
    found = results.read(results.FOLDER)
    assert (results.FOLDER / "README.md").read_text("utf-8") == report.render(found)
    picture = (results.FOLDER / f"{overview.NAME}.svg").read_text("utf-8")
    assert all(f">{bar.times:.2f} x (" in picture for bar in overview.bars(found))
    assert not any(run.is_quick for result in found for run in result.runs)
    stems = {path.stem for path in results.FOLDER.glob("*.json")}
    assert stems == {result.benchmark for result in found}


def test_links_of_the_page_lead_somewhere() -> None:
    page = (results.FOLDER / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (results.FOLDER / target).exists(), target


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=lambda each: each.name)
def test_each_benchmark_is_described_and_can_be_asked(benchmark: Any) -> None:
    assert benchmark.group in GROUPS
    assert benchmark.about
    source = (FOLDER / f"{benchmark.name}.py").read_text()
    assert "\ndef measure(effort: Effort) -> list[Row]:" in source
    assert f"| `{benchmark.name}` |" in (FOLDER / "README.md").read_text()


def test_only_the_page_has_figures() -> None:
    """Ratios and times elsewhere would stay when the page changes."""
    text = (FOLDER / "README.md").read_text()
    # Another script writes these figures, and a test holds that they are its.
    text = re.sub(r"<!-- written by scripts/.*?<!-- to here -->", "", text, flags=re.DOTALL)
    assert not re.findall(r"\b\d+\.\d+\b|\bx\d", text)


def test_rows_of_one_unit_share_a_panel() -> None:
    two = [Row("a", 1.0, RATIO), Row("b", 2.0, f"{RATIO} DDP's states"), Row("c", 3.0, RATIO)]
    assert plots.draw("Two", two).count('id="axes_') == 2
