"""Words what the report for a terminal and the page say alike."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator
from pathlib import Path

from lightning_gaudi.untrusted import hide_words, printable

from .finding import Finding
from .merging import Audit
from .record import WARM_UP, Loader, Record

WIDTH = 96
_LABEL_LENGTH = 36


def command(audit: Audit) -> str:
    """Returns the audited command in a line, without secrets."""
    words = printable(" ".join(hide_words(audit.command)), max_chars=10_000)
    return textwrap.shorten(words, WIDTH, placeholder=" ...")


def headline(audit: Audit) -> str:
    """Returns in a line how many steps were judged, and on which card and release."""
    record = audit.first
    ranks = f"{len(audit.records)} ranks" if len(audit.records) > 1 else "1 rank"
    steps = f"{audit.num_steps} steps, the first {WARM_UP} of them not judged"
    if audit.num_steps <= WARM_UP:
        steps = f"{audit.num_steps} of at least {WARM_UP + 1} steps, so none is judged by itself"
    if not audit.num_steps:
        steps = "no step of an optimizer, so all of it is judged"
    mode = "lazy" if record.is_lazy else "eager"
    on = f"{ranks} on simulated {record.card}, release {record.release}, {mode} mode"
    return f"{steps}; {on}" + (f", as {record.measured} says" if record.measured else "")


def source_line(finding: Finding) -> str:
    """Returns the line of the user's code."""
    return linecache.getline(finding.file, finding.line).strip()


def short(file: str) -> str:
    """Returns a file as the user would name it from here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def inside(finding: Finding) -> str:
    """Returns what was below the user's line: the backward pass, and the line of a library."""
    is_backward = finding.phase == "backward"
    return ", ".join(filter(None, ("the backward pass" if is_backward else "", finding.via)))


def frequency(finding: Finding, num_judged: int) -> str:
    """Returns how often it was met, in words."""
    if finding.num_steps:
        return f"in {finding.num_steps} of {num_judged} steps"
    return "once" if finding.count == 1 else f"{finding.count} times, in none of the judged steps"


def label(file: str, line: int) -> str:
    """Returns file and line, shortened from the left to the width of a column."""
    name = f"{short(file)}:{line}"
    return name if len(name) <= _LABEL_LENGTH else f"…{name[1 - _LABEL_LENGTH :]}"


def advice(loader: Loader) -> Iterator[str]:
    """Yields what padding costs, and which boundaries would waste least."""
    if loader.num_tokens is not None and loader.num_places:
        share = 1 - loader.num_tokens / loader.num_places
        yield f"{share:.1%} of the places are padding"
    if loader.buckets and not loader.has_bounded_shapes and len(loader.shapes) > 1:
        yield f"best boundaries for these lengths: {loader.buckets}"


def collectives(record: Record) -> dict[str, tuple[int, int]]:
    """Returns the numbers of calls and of bytes of each kind of collective."""
    found: dict[str, tuple[int, int]] = {}
    for line in record.lines:
        if line.kind == "collective":
            calls, num_bytes = found.get(line.what, (0, 0))
            found[line.what] = calls + line.count, num_bytes + line.amount
    return found


def step_values(record: Record, name: str) -> list[int]:
    """Returns one of the figures of `Step`, for every step."""
    return [int(getattr(step, name)) for step in record.steps]


def size(num_bytes: int) -> str:
    """Returns a number of bytes in GiB or MiB."""
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:,.2f} GiB"
    return f"{num_bytes / 2**20:,.2f} MiB"
