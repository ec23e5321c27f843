"""Renders a published run beside its plan, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.published import Beside, Room, beside, rooms
from lightning_gaudi.tools.plan.step_times import later

_ON, _VALUE = 12, 24


def published_text(planned: Planned) -> list[str]:
    """Returns the lines of a table of figures and estimates, and of the batches that fitted."""
    run = planned.published
    if run is None:
        return []
    figures, fitted = _found(planned)
    lines = ["", f"  published/{run.name}: {run.title}"]
    if figures:
        lines.append(
            f"  {'on':{_ON}}{'published':{_VALUE}}{'at least':>22}{'error':>9}"
            f"{'unfused':>12}{'error':>9}{'as public runs were':>24}"
        )
    lines += [_figure(each) for each in figures]
    reasons = dict.fromkeys(
        f"{each.figure.hardware}: {each.why_not_likely}"
        for each in figures
        if each.why_not_likely and each.card in GAUDIS and each.least is not None
    )
    lines += [f"  not as public runs were, on {each}" for each in reasons]
    for each in figures:
        if (known := later(run.name, each.figure.hardware, each.figure.name)) is not None:
            lines.append(
                f"  the same run with later software ({known.release}), {each.figure.hardware}: "
                f"{each.figure.name} {known.value:g}"
            )
    lines += [f"  {_room(each)}" for each in fitted]
    lines += [f"  planned with other settings: {each}" for each in run.differing]
    sources = dict.fromkeys([each.source for each in run.figures])
    sources |= dict.fromkeys([each.source for each in run.no_room])
    return lines + [f"  source: {each}" for each in sources]


def published_dict(planned: Planned) -> dict[str, Any] | None:
    """Returns the same as plain data; errors are shares of the published values."""
    if planned.published is None:
        return None
    figures, fitted = _found(planned)
    return {
        "name": planned.published.name,
        "title": planned.published.title,
        "differing": [*planned.published.differing],
        "figures": [
            {
                **asdict(each),
                "errors": each.errors,
                "later": _later_dict(planned.published.name, each),
            }
            for each in figures
        ],
        "rooms": [{**asdict(each), "agrees": each.agrees} for each in fitted],
    }


def _later_dict(run: str, each: Beside) -> dict[str, Any] | None:
    known = later(run, each.figure.hardware, each.figure.name)
    return None if known is None else asdict(known)


def _found(planned: Planned) -> tuple[Sequence[Beside], Sequence[Room]]:
    run, rehearsed, counted = planned.published, planned.rehearsed, planned.counted
    assert run is not None
    assert rehearsed is not None
    assert counted is not None
    figures = beside(run, planned.request, rehearsed, counted)
    fitted = rooms(run, planned.largest)
    if planned.on:  # figures of other cards stand beside the plan for those
        figures = [each for each in figures if each.card in planned.largest]
        fitted = [each for each in fitted if each.largest is not None]
    return figures, fitted


def _figure(each: Beside) -> str:
    figure = each.figure
    value = f"{figure.name} {figure.value:g}"
    start = f"  {figure.hardware:{_ON}}{value:{_VALUE}}"
    if each.errors is None:
        return f"{start}  no estimate: {each.why_not}"
    least, unfused = (f"{error:+.0%}" for error in each.errors)
    width = max(12, 22 - max(0, len(value) - _VALUE))
    likely = "-" if each.likely is None else "{:.4g} to {:.4g}".format(*each.likely)
    return f"{start}{each.least:>{width}.5g}{least:>9}{each.unfused:>12.5g}{unfused:>9}{likely:>24}"


def _room(each: Room) -> str:
    published = "fitted" if each.did_fit else "did not fit"
    says = f"batch {each.batch_size} {published} {each.hardware}, as published"
    if each.largest is None:
        return f"{says}; not planned for it"
    planned = f"up to {each.largest}" if each.largest else "none fits"
    return f"{says}; planned: {planned}, {'which agrees' if each.agrees else 'which DIFFERS'}"
