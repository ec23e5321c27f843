"""Counts the simulator's events by step and by line."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from lightning_gaudi._core import vendor

from . import call_sites
from .call_sites import Place
from .record import Line, Step


class Recorder:
    """Counts the events that it is told of, until `stop`.

    A step ends when the optimizer that stepped first steps again. One that steps its groups one
    after the other, as DeepSpeed's do, ends one step, and so does a pair of optimizers.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.lines: dict[tuple[str, str, Place], Line] = {}
        self.is_on = True
        self._step = Step()
        self._place: Place | None = None
        self._main: object = None
        self._num_stepped: dict[object, int] = {}

    @property
    def num_steps(self) -> int:
        """The steps that have ended."""
        return len(self.steps)

    def note(self, kind: str, what: str, amount: int, detail: str) -> None:
        """Counts an event, as an observer of the simulator.

        Args:
            kind: The kind of the event; for this and the others see `simulator.observer`.
            what: The event among those of its kind.
            amount: How much of it.
            detail: What else is known.
        """
        if not self.is_on:
            return
        place = self._place or call_sites.here()
        if place.stage == call_sites.TRAINING:
            self._step.add(kind, what, amount, place.is_compiled)
        if (kind, what, place) not in self.lines:
            self.lines[kind, what, place] = Line(kind, what, *place)
        self.lines[kind, what, place].add(amount, self.num_steps, detail)

    def note_stepped(self, optimizer: Any) -> bool:
        """Notes that an optimizer has stepped; returns whether a step has ended with it.

        Args:
            optimizer: A `torch.optim.Optimizer`.
        """
        # DeepSpeed's optimizers step one group after the other, each time with that group alone in
        # `param_groups`: the first weight tells these steps apart.
        weights = [each for group in optimizer.param_groups for each in group["params"][:1]]
        key = (id(optimizer), id(weights[0]) if weights else 0)
        self._num_stepped[key] = self._num_stepped.get(key, 0) + 1
        if self._main is None or self._num_stepped[key] > self._num_stepped[self._main] + 1:
            # The optimizer that stepped first, or another one that goes on without it, as where a
            # program trains with one optimizer after another.
            self._main = key
        if key != self._main:
            return False
        peak_bytes = vendor.memory_stats()["MaxInUse"]
        self.steps.append(dataclasses.replace(self._step, peak_bytes=peak_bytes))
        self._step = Step()
        return True

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Charges the events of a block to a place."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def stop(self) -> None:
        """Ends the counting."""
        self.is_on = False
