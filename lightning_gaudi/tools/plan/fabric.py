"""A loop of the user's on a dry card, written with Fabric.

The program is forked where it makes its Fabric, and the forks go on as the program: their loaders
of training give batches until the optimizer has taken enough steps, and none from then on. So the
evaluation that is behind the loop is met, whatever the number of epochs. What is saved is not
written, and what would be loaded stays as it is: nothing has values.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from typing_extensions import override

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.tools.plan import dry_run
from lightning_gaudi.tools.plan.batches import NUM_STEPS, Repeated, batch_size_of
from lightning_gaudi.tools.plan.forks import Fork, GoOn, Teller
from lightning_gaudi.tools.plan.measurement import Watch
from lightning_gaudi.tools.plan.model_changes import set_checkpointing
from lightning_gaudi.tools.plan.published import declared
from lightning_gaudi.tools.plan.request import Request
from lightning_gaudi.tools.plan.run import Run

_MOST_BATCHES = 1024
"""Of a loader without steps of an optimizer: what only reads its data is not training."""
_MOST_EPOCHS = 100
_EPOCHS_S = 10.0
"""How many epochs without a batch may follow, and for how long, before the program is ended."""

_MOST_STEPS = 2 * NUM_STEPS
"""So many are taken of batches that the program has kept, as itertools.cycle does."""

_run: _FabricRun | None = None
"""Of the fork that this process is."""


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a Fabric that rehearses, for those that a program has passed."""
    return {**given, "loggers": None, **dry_run.settings(dry_run.read_request(), given)}


def rehearse(given: dict[str, Any], save: Callable[..., None], family: Family) -> None:
    """Measures what this program takes from here on, and ends it; the forks that measure return.

    Args:
        given: Arguments of the Fabric that is about to be made.
        save: `Fabric.save`.
        family: Of the Fabric.

    Raises:
        SystemExit: When all is measured.
    """
    if _run is not None:  # another Fabric of the program that a fork plays
        return
    request = dry_run.read_request()
    dry_run.settings(request, given)  # what is written of it says on how many cards

    def start(make_watch: Callable[[Run], Watch], batch_size: int | None) -> Fork:
        def go_on(teller: Teller) -> NoReturn:
            global _run
            dry_run.begin_fork(family)
            _run = _FabricRun(request, batch_size, save, teller, make_watch)
            raise GoOn

        return Fork(go_on)

    callbacks = given.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    try:
        dry_run.measure(request, start, declared(callbacks))
    except GoOn:
        return


def this_run() -> _FabricRun | None:
    """Returns what this process plays, if it is a fork that rehearses a loop."""
    return _run


class _FabricRun(Run):
    """What the program does from here on; it is told by what Fabric and torch's loaders do.

    Args:
        request: What is asked.
        batch_size: Of all batches; None for the program's own.
        save: `Fabric.save`.
        teller: Ends this process.
        make_watch: Makes what measures it.
    """

    def __init__(
        self,
        request: Request,
        batch_size: int | None,
        save: Callable[..., None],
        teller: Teller,
        make_watch: Callable[[Run], Watch],
    ) -> None:
        self._request = request
        self.batch_size = batch_size
        self._save = save
        self._teller = teller
        self._fabric: Any = None
        self._modules: list[Any] = []
        self._optimizers: list[Any] = []
        self._num_stepped: dict[int, int] = {}
        self._loader: Any = None
        self._num_batches = 0
        self._num_micro_batches = 1
        self._done_at: float | None = None
        self._num_empty = 0
        self._evaluated: list[Any] = []
        self._is_ending = False
        self._error: BaseException | None = None
        self._is_stepping = False
        self._show = sys.excepthook
        sys.excepthook = self._note_error
        register_optimizer_step_pre_hook(self._refuse_unknown)
        self._watch = make_watch(self)
        atexit.register(self._end_program)

    def note_setup(self, fabric: Any, module: Any) -> None:
        """A module is about to be set up."""
        dry_run.fill_weights()
        self._fabric = fabric
        if self._request.checkpointing is not None:
            set_checkpointing(module, is_on=self._request.checkpointing)
        self._watch.note_made(module)

    def note_module(self, wrapped: Any) -> None:
        """A module is set up, as Fabric hands it out."""
        self._modules.append(wrapped)
        atexit.unregister(self._end_program)
        atexit.register(self._end_program)  # before what ends the process groups of now

    def note_optimizer(self, wrapped: Any) -> None:
        """An optimizer is set up, as Fabric hands it out."""
        self._optimizers.append(wrapped)

    def step(self, step: Callable[..., Any], optimizer: Any, closure: Any = None) -> Any:
        """Takes a step of an optimizer of Fabric's."""

        def closed() -> Any:
            found = closure()
            self._note_backward()
            return found

        if self._num_steps > _MOST_STEPS:
            self._end_run()
        if closure is None:
            self._note_backward()
        self._is_stepping = True
        output = step(optimizer, closed if closure is not None else None)
        self._is_stepping = False
        number = self._num_stepped.get(id(optimizer), 0) + 1
        self._num_stepped[id(optimizer)] = number
        if self._num_steps == number == 1:
            self._num_micro_batches = max(1, self._num_batches)
        if self._num_batches and self._num_steps >= NUM_STEPS and self._done_at is None:
            self._done_at = time.monotonic()
        return output

    def _refuse_unknown(self, optimizer: Any, *_: Any) -> None:
        if not self._is_stepping:
            raise ValueError(
                f"{type(optimizer).__name__} takes a step, and Fabric does not know of it, so it "
                "cannot be planned. Pass it to Fabric.setup or Fabric.setup_optimizers."
            )

    def _note_backward(self) -> None:
        if self._num_batches:
            self._watch.note_backward()

    @property
    def _num_steps(self) -> int:
        """Returns how many steps a batch may take: one of each of several optimizers."""
        return max(self._num_stepped.values(), default=0)

    def batches(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        """Yields what the program gets of a loader.

        Args:
            iterate: Torch's `DataLoader.__iter__`.
            loader: The DataLoader.
        """
        if not self._modules or self._is_ending:  # it looks at its data
            return iterate(loader)
        dry_run.fill_weights()
        loader.num_workers = 0  # nobody waits for it here
        is_in_training = any(each.training for each in self._modules)
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
            self._num_batches += loader.loader is self._loader  # and not of one beside it
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
        """Ends the program, which has come to its end or to an error."""
        error = self._error
        # Behind the steps a program may miss what an epoch without batches has not made.
        is_of_ours = self._num_empty > 0 and not isinstance(error, NotImplementedError)
        if error is not None and not is_of_ours:
            self._teller.end(_raising(error))
        if not self._num_batches:
            self._teller.end(_raising(ValueError(_NO_BATCH)))
        self._end_run()

    def _end_run(self) -> NoReturn:
        self._is_ending = True
        try:
            self._watch.note_end()
        except BaseException as error:
            self._teller.end(_raising(error))
        raise AssertionError("a watch ends its run")

    @property
    @override
    def strategy(self) -> Any:
        return self._fabric.strategy

    @property
    @override
    def model(self) -> Any:
        found = [each._forward_module for each in self._modules]
        return nn.ModuleList(found) if len(found) > 1 else next(iter(found), None)

    @property
    @override
    def optimizers(self) -> list[Any]:
        return [each.optimizer for each in self._optimizers]

    @property
    @override
    def is_trained(self) -> bool:
        return bool(self._optimizers)

    @property
    @override
    def num_micro_batches(self) -> int:
        return self._num_micro_batches

    @override
    def can_save(self, *, weights_only: bool) -> bool:
        has_engine = any(hasattr(each._forward_module, "optimizer") for each in self._modules)
        if has_engine and weights_only:  # DeepSpeed's saves all that it has
            return False
        is_sharded = has_engine or hasattr(self.strategy, "saves_shards")
        return len(self._modules) == 1 or not is_sharded  # of one model it saves shards

    @override
    def save(self, path: Path, *, weights_only: bool) -> None:
        state = {f"model {number}": each for number, each in enumerate(self._modules)}
        if not weights_only:
            state |= {f"optimizer {number}": each for number, each in enumerate(self._optimizers)}
        self._save(self._fabric, path, state)

    @override
    def end(self) -> NoReturn:
        self._teller.end(self._watch.found)


_NO_BATCH = (
    "The program's loop took no batch of a torch DataLoader behind Fabric.setup: what it takes is "
    "not known. Iterate a DataLoader, or plan the module with a batch "
    "(lightning_gaudi.tools.plan.plan.plan_module)."
)


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


class _Plain:
    """A loader as it is, whose batches are the program's own."""

    def __init__(self, iterate: Callable[[Any], Iterator[Any]], loader: Any) -> None:
        self.loader, self._iterate = loader, iterate
        self.batch_size = batch_size_of(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self.loader)
