"""Defines the types by which a program tells that it repeats a published run.

Such a program has a callback in its Trainer with a method `published_run`, and a plan shows its
estimates beside the published figures. The figures come from the program; none are known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A number that was published of a run."""

    name: str
    """What was measured: train_samples_per_s, train_seconds, latency_seconds or
    seconds_per_picture. A plan has no estimate of others."""
    value: float
    unit: str
    hardware: str
    """The card it was measured on: Gaudi, Gaudi 2, A100 80GB, ..."""
    source: str
    batch_size: int
    """The batch size of each card."""


@dataclass(frozen=True)
class NoRoom:
    """Tells that a run did not fit into memory, as published."""

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
    """The optimizer's steps, if the source tells their number."""
    figures: tuple[Figure, ...]
    no_room: tuple[NoRoom, ...]
    differing: tuple[str, ...]
    """The settings in which the program differs from that run, in words."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PublishedRun:
        """Returns the run that `dataclasses.asdict` has made these values of."""
        lists: dict[str, Any] = {
            "figures": tuple(Figure(**each) for each in values["figures"]),
            "no_room": tuple(NoRoom(**each) for each in values["no_room"]),
            "differing": tuple(values["differing"]),
        }
        return cls(**{**values, **lists})
