"""The page of results: a table a group with its plot, and what it was measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import overview, plots
from benchmarks.harness.catalog import BENCHMARKS, GROUPS
from benchmarks.harness.results import Result, Run, read
from benchmarks.harness.rows import HEADER, Row, cells, number

_HEAD = """\
<!-- Written by `python -m benchmarks`; do not edit. -->

# What was measured
"""
_INTRODUCTION = """\
Ratios are marked with an x: ours divided by what it is compared with, or as the row says. The
figure is the median of the rounds' ratios, the quartiles are theirs, and times beside it are
medians. Where no rounds are given the figure is a count, or was measured once. How each is measured
stands in [the benchmarks' README](../README.md); the figures say nothing of a Gaudi's speed.
"""


def write(folder: Path) -> None:
    """Write README.md and the plots for the results in a folder."""
    results = read(folder)
    if shown := overview.bars(results):
        (folder / f"{overview.NAME}.svg").write_text(overview.draw(shown), "utf-8")
    (folder / "README.md").write_text(render(results), "utf-8")
    for group, rows in _groups(results):
        if plots.is_drawn(rows):
            (folder / f"{group}.svg").write_text(plots.draw(GROUPS[group], rows), "utf-8")


def render(results: Sequence[Result]) -> str:
    """README.md."""
    parts = [_HEAD, *_overview(results), _INTRODUCTION, *_cautions(results)]
    for group, rows in _groups(results):
        parts += [f"## {GROUPS[group]}\n", _table(HEADER, map(cells, rows))]
        if plots.is_drawn(rows):
            parts.append(f"![{GROUPS[group]}: figures, quartiles and limits]({group}.svg)\n")
    if results:
        parts += ["## Measured on\n", *_measured_on(results)]
    measured = {result.benchmark for result in results}
    if missing := [f"`{name}`" for name in BENCHMARKS if name not in measured]:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def _overview(results: Sequence[Result]) -> Iterator[str]:
    if shown := overview.bars(results):
        told = "; ".join(f"{bar.label} {bar.times:.2f} x {bar.other}" for bar in shown)
        yield f"![{overview.TITLE}: {told}]({overview.NAME}.svg)\n"
        yield f"{overview.CAUTION} What a bar is measured by stands below, with its rounds.\n"


def _groups(results: Sequence[Result]) -> Iterator[tuple[str, list[Row]]]:
    """Those that have rows, in order."""
    for group in GROUPS:
        found = [each for each in results if BENCHMARKS[each.benchmark].group == group]
        if rows := [row for result in found for row in result.rows()]:
            yield group, rows


def _cautions(results: Sequence[Result]) -> Iterator[str]:
    runs = _runs(results)
    if any(run.is_quick for _, run in runs):
        yield "**Measured with `--quick`: three rounds, which shows that it works and no more.**\n"
    if busy := sorted({f"`{name}`" for name, run in runs if run.is_busy}):
        yield f"**Others used the machine meanwhile, see the end: {', '.join(busy)}.**\n"


def _runs(results: Sequence[Result]) -> list[tuple[str, Run]]:
    return [(result.benchmark, run) for result in results for run in result.runs]


def _measured_on(results: Sequence[Result]) -> Iterator[str]:
    rows = []
    places: list[str] = []
    for name, run in _runs(results):
        place = _place(run)
        if place not in places:
            places.append(place)
        others = "unknown" if run.other_cores is None else number(run.other_cores)
        rows.append(
            (
                f"`{name}`, {run.mode}" if len(BENCHMARKS[name].modes) > 1 else f"`{name}`",
                run.date,
                f"{run.seconds:.0f} s",
                number(run.load_average),
                others,
                str(places.index(place) + 1),
            )
        )
    for index, place in enumerate(places, start=1):
        yield f"{index}. {place}"
    yield ""
    header = ("", "Begun (UTC)", "Took", "Load average before", "Cores others used", "On")
    yield _table(header, rows)


def _place(run: Run) -> str:
    machine, versions = run.machine, run.versions
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['os']}; {packages}"
    )


def _table(header: Sequence[str], rows: object) -> str:
    lines = [header, ["---"] * len(header), *rows]  # type: ignore[misc]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
