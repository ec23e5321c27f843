"""`RunGuard` passes the events of a run from a strategy on to the parts that keep the run.

Each part can be read, and switched off, by itself. `LossWatch` ends a run whose loss is not finite.
The Trainer's strategies add exact resume, signals and asynchronous saving (`strategies.parts`,
`strategies.signals`), and Fabric's add loaders that go on where they stood (`data.resumable`). The
guard also notes for the watchdog where the run is (`watchdog`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import Tensor

from lightning_gaudi._core import progress, vendor
from lightning_gaudi._core.processes.rank_monitor import say

from .finite import NUM_LEFT_OUT, FiniteLosses, left_out, not_finite
from .pace import Pace
from .settings import ReliabilitySettings


class Run(Protocol):
    """Declares what the parts need of a strategy."""

    @property
    def reliability(self) -> ReliabilitySettings:
        """The user's settings."""

    @property
    def steps_per_look(self) -> int:
        """The number of steps of the optimizer between two looks at the losses."""

    @property
    def leaves_steps_out(self) -> bool:
        """Whether a step with gradients that are not finite is left out, as with loss scaling."""

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns whether all ranks (or any of them) have decided so."""

    def of_all_ranks(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank; all ranks call it."""


class Part:
    """One thing that keeps a run; a part overrides the events that it has a use for."""

    def begin(self) -> None:
        """Is called when a model has been set up."""

    def loader(self, loader: Any) -> None:
        """Is called when a loader is about to be iterated."""

    def start(self) -> None:
        """Is called when training starts."""

    def batch(self) -> None:
        """Is called when a batch is about to be trained on."""

    def loss(self, loss: Tensor, step: int) -> None:
        """Is called when backward is about to run from a loss, for a step numbered from 1 on."""

    def step(self, number: int) -> None:
        """Is called when the optimizer has made a step, from 1 on."""

    def save(self, state: Any) -> None:
        """Is called before a checkpoint is written; what it puts into `state` is saved, too."""

    def load(self, state: Any) -> None:
        """Is called when a checkpoint has been read, to go on from."""

    def exception(self, exception: BaseException) -> None:
        """Is called when the run ends with an exception."""

    def end(self) -> None:
        """Is called when training has ended."""

    def close(self) -> None:
        """Is called when the strategy is torn down, whatever has happened."""


class RunGuard:
    """Passes the events of a run on to its parts, in their order, and notes where the run is.

    Args:
        run: The strategy.
        parts: The parts that follow the watch over the losses.
    """

    def __init__(self, run: Run, parts: Sequence[Part] = ()) -> None:
        self.losses = LossWatch(run)
        self.parts: Sequence[Part] = (self.losses, *parts)
        self._pace = Pace(run) if getattr(run, "is_ranked", False) else None
        self.num_steps = 0
        """The number of steps that the optimizer has made."""
        self._first_step = 0

    def note(self, place: str, step: int | None = None, *, new_batch: bool = False) -> None:
        """Notes for the watchdog where this rank is.

        Args:
            place: In a word or two.
            step: The step of the optimizer, from 1 on; by default that of the last note.
            new_batch: Whether the next batch begins here.
        """
        # The first step may compile for long, so the shorter limit of training starts after it.
        is_training = self.num_steps > self._first_step
        progress.enter(place, step, is_training=is_training, new_batch=new_batch)

    def begin(self) -> None:
        """See `Part.begin`."""
        self._first_step = self.num_steps
        if self._pace is not None:
            self._pace.begin()
        for part in self.parts:
            part.begin()

    def loader(self, loader: Any) -> None:
        """See `Part.loader`."""
        for part in self.parts:
            part.loader(loader)

    def start(self, num_steps: int) -> None:
        """Is called when training starts, after so many steps of the optimizer."""
        self.num_steps = self._first_step = num_steps
        for part in self.parts:
            part.start()

    def batch(self, num_steps: int) -> None:
        """Is called before a batch is trained on, after so many steps of the optimizer."""
        self.num_steps = num_steps
        for part in self.parts:
            part.batch()
        self.note("forward", num_steps + 1, new_batch=True)
        if self._pace is not None:
            self._pace.batch()

    def loss(self, loss: Tensor) -> None:
        """See `Part.loss`."""
        if self._pace is not None:
            self._pace.loss()
        for part in self.parts:
            part.loss(loss, self.num_steps + 1)

    def step(self) -> None:
        """See `Part.step`."""
        self.num_steps += 1
        self.note("between two steps", self.num_steps)
        for part in self.parts:
            part.step(self.num_steps)
        if self._pace is not None:  # after the parts, which may wait for the card to read losses
            self._pace.step(self.num_steps)

    def save(self, state: Any) -> None:
        """See `Part.save`."""
        for part in self.parts:
            part.save(state)

    def load(self, state: Any) -> None:
        """See `Part.load`."""
        for part in self.parts:
            part.load(state)

    def exception(self, exception: BaseException) -> None:
        """See `Part.exception`."""
        for part in self.parts:
            part.exception(exception)

    def end(self) -> None:
        """See `Part.end`."""
        for part in self.parts:
            part.end()

    def close(self) -> None:
        """Closes all parts, the last one first, even if one raises."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.callback(part.close)


class LossWatch(Part):
    """Ends the run at a loss that is not finite, before it gets into a checkpoint (`stop_on_nan`).

    Losses stay on the device, and are looked at together: once in an interval, and before a save.

    Args:
        run: The strategy.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._losses: FiniteLosses | None = None
        self._is_on = False
        self._is_trial = False
        self._has_said_left_out = False
        self._last_step = 0

    def begin(self) -> None:
        """Forgets the losses of an earlier fit."""
        self._losses = None

    def loss(self, loss: Tensor, step: int) -> None:
        """Remembers a loss, before backward, to be looked at later."""
        if self._losses is None:
            self._losses = FiniteLosses(NUM_LEFT_OUT if self._run.leaves_steps_out else 0)
            self._is_on = self._run.reliability.stop_on_nan
        self._last_step = step - 1
        if self._is_on and not self._is_trial:
            self._losses.note(loss, step)

    def step(self, number: int) -> None:
        """Looks at the losses where an interval ends."""
        self._last_step = number
        if self._losses is not None and number % self._run.steps_per_look == 0:
            self.check(ends_interval=True)

    def save(self, state: Any) -> None:
        """Looks at the losses, so that none that is not finite gets into a checkpoint."""
        self.check()

    def end(self) -> None:
        """Looks at the losses since the last interval."""
        self.check()

    def check(self, *, ends_interval: bool = False) -> None:
        """Raises on all ranks if a loss of any rank was not finite; waits for the device.

        Args:
            ends_interval: Whether an interval ends here.

        Raises:
            LossNotFiniteError: A loss was not finite.
        """
        if self._is_trial or not self._run.reliability.stop_on_nan:
            return
        losses = self._losses or FiniteLosses()
        bad = losses.first_bad(ends_interval=ends_interval, is_lazy=vendor.is_lazy())
        if self._run.reduce_boolean_decision(bad is not None, all=False):
            raise not_finite(self._run.of_all_ranks(bad), self._last_step)
        if losses.left_out is not None and not self._has_said_left_out:
            self._has_said_left_out = True
            rank = getattr(self._run, "global_rank", 0)
            say(f"[rank: {rank}] {left_out(losses.left_out)}")

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Lets no loss end the run in this block, whose steps are tried and taken back."""
        self._is_trial = True
        try:
            yield
        finally:
            self._is_trial = False
