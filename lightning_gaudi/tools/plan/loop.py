"""Rehearses a user's loop: the part that loops of Fabric and loops without Lightning share.

The program is forked, and the forks go on as the program. Their loaders of training give batches
until the optimizer has taken enough steps, and none after that. So the program comes to the
evaluation behind its loop, whatever the number of epochs.
"""

from __future__ import annotations

import atexit
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from typing_extensions import override

from lightning_gaudi.tools.plan import model_changes
from lightning_gaudi.tools.plan.batches import NUM_STEPS, Repeated, batch_size_of
from lightning_gaudi.tools.plan.dry_run import Played
from lightning_gaudi.tools.plan.request import Request
from lightning_gaudi.tools.plan.run import Run

_MOST_BATCHES = 1024
"""The most batches of a loader without an optimizer step; a loop that only reads does not train."""
_MOST_EPOCHS = 100
_EPOCHS_S = 10.0
"""How many epochs without a batch may follow, and for how many seconds, before the program ends."""

_MOST_STEPS = 2 * NUM_STEPS
"""The most steps on batches that no loader gives, such as those that itertools.cycle has kept."""


class LoopRun(Run):
    """Follows what the program does from here on, as optimizers and torch's loaders report it.

    Args:
        request: What is asked for.
        played: What this process has to find out.
    """

    _no_batch = "The program took no batch of a torch DataLoader: what it takes is not known."

    def __init__(self, request: Request, played: Played) -> None:
        self._request = request
        self.batch_size = played.batch_size
        self._teller = played.teller
        self._num_stepped: dict[int, int] = {}
        self._loader: Any = None
        self._num_batches = 0
        self._num_micro_batches = 1
        self._done_at: float | None = None
        self._num_empty = 0
        self._evaluated: list[Any] = []
        self._is_ending = False
        self._error: BaseException | None = None
        self._show = sys.excepthook
        sys.excepthook = self._note_error
        self._watch = played.make_watch(self)
        self.end_behind_exit()

    def forget_exit(self) -> None:
        """Lets the program end as it would without this run."""
        sys.excepthook = self._show
        atexit.unregister(self._end_program)

    def end_behind_exit(self) -> None:
        """Ends this run when the program ends, before the exit handlers registered so far."""
        atexit.unregister(self._end_program)
        atexit.register(self._end_program)

    @property
    @abstractmethod
    def modules(self) -> Sequence[Any]:
        """The modules that are set up, as the program calls them."""

    def note_step(self, optimizer: Any) -> None:
        """Notes that an optimizer has taken a step."""
        number = self._num_stepped.get(id(optimizer), 0) + 1
        self._num_stepped[id(optimizer)] = number
        if self._num_steps == number == 1:
            self._num_micro_batches = max(1, self._num_batches)
        if self._num_batches and self._num_steps >= NUM_STEPS and self._done_at is None:
            self._done_at = time.monotonic()

    def note_backward(self) -> None:
        """Notes that an optimizer is about to step."""
        if self._num_steps > _MOST_STEPS:
            self._end_run()
        if self._num_batches:
            self._watch.note_backward()

    @property
    def _num_steps(self) -> int:
        """Returns how many steps a batch may take: one for each optimizer."""
        return max(self._num_stepped.values(), default=0)

    def batches(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        """Returns an iterator of the batches that the program gets from a loader.

        Args:
            iterate: Torch's `DataLoader.__iter__`.
            loader: The DataLoader.
        """
        if self._is_ending or not self.modules:  # the program only looks at its data
            return iterate(loader)
        model_changes.fill_weights()
        loader.num_workers = 0  # workers would only cost time to start
        is_in_training = any(each.training for each in self.modules)
        if self.is_trained and torch.is_grad_enabled() and is_in_training:
            return self._training(_Plain(iterate, loader))
        return self._evaluation(_Plain(iterate, loader))

    def _training(self, loader: _Plain) -> Iterator[Any]:
        if self._done_at is not None:
            self._note_empty(self._done_at)
            return
        try:
            most = min(len(loader), _MOST_BATCHES)
        except TypeError:
            most = _MOST_BATCHES
        for batch in islice(Repeated(loader, self.batch_size), most):
            if self._done_at is not None:
                return
            if self._loader is None:
                self._loader = loader.loader
                self.note_first_loader(loader)
            self._num_batches += loader.loader is self._loader  # without those of other loaders
            self._watch.note_batch(self._num_steps, batch)
            yield batch

    def _note_empty(self, done_at: float) -> None:
        self._num_empty += 1
        if self._num_empty > _MOST_EPOCHS or time.monotonic() > done_at + _EPOCHS_S:
            self._end_run()

    def _evaluation(self, loader: _Plain) -> Iterator[Any]:
        if self._done_at is not None:
            if any(each is loader.loader for each in self._evaluated):
                self._num_empty += 1
                return
            if not self._evaluated:
                self._watch.note_evaluation()
            self._evaluated.append(loader.loader)
        least = 1 if self.is_trained else NUM_STEPS
        found = Repeated(loader, self.batch_size, 1.0, has_others=True, least=least)
        if not self.is_trained:
            self._watch.note_loader(found.num_before, found.num_others)
        for number, batch in enumerate(islice(found, len(found))):
            if not self.is_trained:
                self._num_batches += 1
                self._watch.note_evaluated(number, batch)
            yield batch
        if not self.is_trained:
            self._end_run()

    def _note_error(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        self._error = error
        self._show(kind, error, trace)

    def _end_program(self) -> None:
        """Ends the program when it has come to its end or to an error."""
        error = self._error
        # After the steps, a program may fail since an epoch without batches has made nothing.
        is_of_ours = self._num_empty > 0 and not isinstance(error, NotImplementedError)
        if error is not None and not is_of_ours:
            self._fail(error)
        if not self._num_batches:
            self._fail(ValueError(self._no_batch))
        self._end_run()

    def _fail(self, error: BaseException) -> NoReturn:
        def fail() -> NoReturn:
            raise error

        self._teller.end(fail)

    def _end_run(self) -> NoReturn:
        self._is_ending = True
        try:
            self._watch.note_end()
        except BaseException as error:
            self._fail(error)
        raise AssertionError("a watch ends its run")

    @property
    @override
    def model(self) -> Any:
        found = [*self.modules]
        return nn.ModuleList(found) if len(found) > 1 else next(iter(found), None)

    @property
    @override
    def is_trained(self) -> bool:
        return bool(self.optimizers)

    @property
    @override
    def num_micro_batches(self) -> int:
        return self._num_micro_batches

    @override
    def end(self) -> NoReturn:
        self._teller.end(self._watch.found)


class _Plain:
    """A loader that gives the program's own batches."""

    def __init__(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> None:
        self.loader, self._iterate = loader, iterate
        self.batch_size = batch_size_of(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self.loader)
