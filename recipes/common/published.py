"""Reads what sources state of published runs, and computes how far another run is from them.

Each recipe has a registry, `published.yaml`, beside its modules. For each run in it there is a
configuration of that name below `published/`, which names the run (`published: NAME`). Nothing here
knows a Trainer or a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from lightning_gaudi.tools.command_line import catalog
from recipes.common.errors import UserError, first_line

_ENVIRONMENT = "environment"
_FILES = "PT_HPU_AUTOCAST_"
"""The prefix of variables whose values are files of the recipe's folder `published`."""
_ABSENT = "<absent>"
_DAMAGED = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Source:
    """A text, a file or a revision that states something of a run."""

    title: str
    address: str
    date: str
    """The date of publication, or the version."""


@dataclass(frozen=True)
class Figure:
    """A number that was published of a run."""

    name: str
    """The name of what was measured, as `compare` takes it: train_samples_per_s, val/f1, ..."""
    value: float
    unit: str
    hardware: str
    """The hardware that it was measured on: Gaudi, Gaudi 2, Gaudi 3."""
    better: str
    """Whether a "higher" or a "lower" value is better."""
    tolerance: float
    """How much worse a run may be and still agree, as a share of the value."""
    source: str
    """The title of its source."""
    batch_size: int | None = None
    """The samples of a micro-batch on a card, if they differ from the run's."""


@dataclass(frozen=True)
class NoRoom:
    """Says that the run did not fit a card."""

    hardware: str
    source: str
    """The title of its source."""
    batch_size: int | None = None
    """The samples of the micro-batch that did not fit, if they differ from the run's."""


@dataclass(frozen=True)
class Run:
    """A published run."""

    name: str
    recipe: str
    title: str
    hardware: tuple[str, ...]
    num_cards: int
    global_batch: int
    """The samples of an optimizer step on all cards."""
    sources: tuple[Source, ...]
    settings: Mapping[str, Any]
    """The settings that a source states, by their paths in our YAML."""
    defaults: Mapping[str, Any]
    """The defaults of the program that a source names, by path, where it states no setting."""
    ours: Mapping[str, str]
    """Why we chose a setting that no source states, by path; the value is in the YAML."""
    figures: tuple[Figure, ...]
    elsewhere: tuple[Figure, ...]
    """The figures that the same sources have of other cards; a plan is compared with them."""
    no_room: tuple[NoRoom, ...]
    operators: Mapping[str, Sequence[str]]
    """The operators of mixed precision that its source lists for bf16 and fp32, by its names."""
    discrepancies: tuple[str, ...]
    """Where sources contradict one another or themselves, or leave something of the run open."""

    @property
    def batch_size(self) -> int:
        """The samples of a micro-batch on a card; of a run that only predicts, of its batches."""
        return int(self.settings.get("data.batch_size") or self.settings["data.eval_batch_size"])


@dataclass(frozen=True)
class Row:
    """Holds a published figure, and that of another run."""

    figure: Figure
    measured: float | None
    """The figure of the run; None if it was not measured."""
    difference: float | None
    """The difference as a share of the published value; 0.1 is ten percent more."""
    is_within: bool | None
    """Whether it is no worse than the tolerance allows; None if that cannot be told."""


def read_runs(folder: Path) -> dict[str, Run]:
    """Returns the published runs in the registry of a recipe, by name.

    Args:
        folder: the recipe's.

    Raises:
        UserError: the registry, which is installed with the recipe, is damaged.
    """
    path = folder / catalog.REGISTRY
    try:
        entries = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {}
        return {name: _read_run(folder.name, name, entry) for name, entry in entries.items()}
    except _DAMAGED as error:
        raise UserError(
            f"{path} is damaged: {first_line(error)} Install the recipes again."
        ) from error


def find_run(folder: Path, name: str) -> Run:
    """Returns the published run of that name.

    Raises:
        UserError: there is none; it names those that there are.
    """
    runs = read_runs(folder)
    if name not in runs:
        raise UserError(
            f"published={name} is no run that {folder.name} knows. {catalog.choices(name, runs)}"
        )
    return runs[name]


def _read_run(recipe: str, name: str, entry: Mapping[str, Any]) -> Run:
    values = {
        "hardware": tuple(entry["hardware"]),
        "sources": tuple(Source(**source) for source in entry["sources"]),
        "figures": tuple(Figure(**figure) for figure in entry["figures"]),
        "elsewhere": tuple(Figure(**figure) for figure in entry.get("elsewhere", ())),
        "no_room": tuple(NoRoom(**each) for each in entry.get("no_room", ())),
        "discrepancies": tuple(entry.get("discrepancies", ())),
        "defaults": entry.get("defaults", {}),
        "ours": entry.get("ours", {}),
        "operators": entry.get("operators", {}),
    }
    return Run(name=name, recipe=recipe, **{**entry, **values})


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration's leaves by path, with the class's name for a callback or logger."""
    return dict(_leaves(config, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and "class_path" in value:
        path = f"{path}.{value['class_path'].rpartition('.')[2]}"
        yield path, True
        value = value.get("init_args") or {}
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for each in value:
            yield from _leaves(each, path)
    else:
        yield path, value


def differing_settings(run: Run, config: Mapping[str, Any]) -> list[str]:
    """Returns in words the settings in which a configuration differs from a published run.

    Args:
        run: the published one.
        config: ours, as a nested mapping.
    """
    ours, found = flatten(config), []
    for path, theirs in {**run.settings, **run.defaults}.items():
        value = ours.get(path, _ABSENT)
        if not _is_same(path, value, theirs):
            found.append(f"{path} is {_shown(value)}, not {_shown(theirs)}")
    for path in (path for path in ours if path.startswith(f"{_ENVIRONMENT}.")):
        if path not in {**run.settings, **run.defaults, **run.ours}:
            found.append(f"{path} is {_shown(ours[path])}, and was not set")
    return found


def _is_same(path: str, ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_is_same, [path] * len(ours), ours, theirs))
    if path.startswith(f"{_ENVIRONMENT}.{_FILES}"):
        return Path(str(ours)).parts[-2:] == (catalog.PUBLISHED, theirs) or ours == theirs
    if path.startswith(f"{_ENVIRONMENT}."):
        return str(ours) == str(theirs)
    return (type(ours) is type(theirs) and ours == theirs) or _are_equal_numbers(ours, theirs)


def _are_equal_numbers(ours: Any, theirs: Any) -> bool:
    values = (ours, theirs)
    return all(type(value) in (int, float) for value in values) and ours == theirs


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def compare(run: Run, measured: Mapping[str, float], hardware: str | None) -> list[Row]:
    """Returns a row for each figure of a published run, with that of another run beside it.

    Args:
        run: the published one.
        measured: by the names of figures; others are left out.
        hardware: what they were measured on, if it is a card at all. Only figures of the same are
            compared; where there is none, no row says whether it agrees.
    """
    return [_compare(figure, measured.get(figure.name), hardware) for figure in run.figures]


def _compare(figure: Figure, measured: float | None, hardware: str | None) -> Row:
    if measured is None:
        return Row(figure, None, None, None)
    difference = measured / figure.value - 1.0
    worse = -difference if figure.better == "higher" else difference
    is_within = worse <= figure.tolerance if hardware == figure.hardware else None
    return Row(figure, measured, difference, is_within)


def render(run: Run, rows: Sequence[Row], reasons: Sequence[str]) -> str:
    """Returns the rows as a table for a terminal, with the reasons why they cannot be compared."""
    table = [("figure", "published", "on", "this run", "difference", "")]
    for row in rows:
        unit = f" {row.figure.unit}" if row.figure.unit else ""
        ours = "not measured" if row.measured is None else f"{row.measured:.6g}{unit}"
        difference = "" if row.difference is None else f"{row.difference:+.1%}"
        published = f"{row.figure.value:.6g}{unit}"
        verdict = _verdict(row) if not reasons else ""
        table.append((row.figure.name, published, row.figure.hardware, ours, difference, verdict))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    head = f"published/{run.name}: {run.title}"
    sources = [f"{each.title} ({each.date}): {each.address}" for each in run.sources]
    notes = [f"note: {text}" for text in run.discrepancies]
    if reasons:
        notes = ["not comparable:", *(f"  {reason}" for reason in reasons), *notes]
    return "\n".join([head, *lines, *notes, *(f"source: {text}" for text in sources)])


def _verdict(row: Row) -> str:
    if row.is_within is None:
        return ""
    tolerance = f"{row.figure.tolerance:.0%}"
    return f"within {tolerance}" if row.is_within else f"worse by more than {tolerance}"
