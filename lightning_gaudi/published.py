"""The types in which a program says that it is a published run, for a plan to stand beside.

A callback of its Trainer has a method `published_run` then. The figures are the program's; none are
known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A number that was published of a run."""

    name: str
    """What was measured: train_samples_per_s, train_seconds, latency_seconds, seconds_per_picture;
    of others a plan has no estimate."""
    value: float
    unit: str
    hardware: str
    """What it was measured on: Gaudi, Gaudi 2, A100 80GB, ..."""
    source: str
    batch_size: int
    """Of each card."""


@dataclass(frozen=True)
class NoRoom:
    """That a run did not fit, as published."""

    hardware: str
    batch_size: int
    source: str


@dataclass(frozen=True)
class PublishedRun:
    """A published run."""

    name: str
    title: str
    num_cards: int
    num_steps: int | None
    """Of the optimizer, where the source says how many."""
    figures: tuple[Figure, ...]
    no_room: tuple[NoRoom, ...]
    differing: tuple[str, ...]
    """In which settings the program is not that run, in words."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PublishedRun:
        """Returns what `dataclasses.asdict` has made of it."""
        lists: dict[str, Any] = {
            "figures": tuple(Figure(**each) for each in values["figures"]),
            "no_room": tuple(NoRoom(**each) for each in values["no_room"]),
            "differing": tuple(values["differing"]),
        }
        return cls(**{**values, **lists})
