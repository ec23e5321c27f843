"""Rehearses a user's loop that is written with Fabric.

The program is forked where it makes its Fabric. Nothing is written when it saves, and nothing is
read when it loads, since nothing has values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch.optim.optimizer import register_optimizer_step_pre_hook
from typing_extensions import override

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.tools.plan import dry_run, model_changes
from lightning_gaudi.tools.plan.forks import Fork, GoOn, Teller
from lightning_gaudi.tools.plan.loop import LoopRun
from lightning_gaudi.tools.plan.measurement import Watch
from lightning_gaudi.tools.plan.published import declared
from lightning_gaudi.tools.plan.request import Request
from lightning_gaudi.tools.plan.run import Run

_run: _FabricRun | None = None
"""The run that this process rehearses, if it is a fork."""


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a Fabric that rehearses, from those that a program has passed."""
    return {**given, "loggers": None, **dry_run.settings(dry_run.read_request(), given)}


def rehearse(given: dict[str, Any], save: Callable[..., None], family: Family) -> None:
    """Measures what this program takes from here on, and ends it; the forks that measure return.

    Args:
        given: The arguments of the Fabric that is about to be made.
        save: `Fabric.save`.
        family: The family of the Fabric.

    Raises:
        SystemExit: All is measured.
    """
    if _run is not None:  # the program makes another Fabric in a fork
        return
    request = dry_run.read_request()
    dry_run.settings(request, given)  # sets the number of ranks, which the results name

    def play(played: dry_run.Played) -> None:
        global _run
        dry_run.begin_fork(family)
        _run = _FabricRun(request, played, save)

    if (played := dry_run.taken_over()) is not None:
        play(played)
        return

    def start(make_watch: Callable[[Run], Watch], batch_size: int | None) -> Fork:
        def go_on(teller: Teller) -> NoReturn:
            play(dry_run.Played(teller, make_watch, batch_size))
            raise GoOn

        return Fork(go_on)

    callbacks = given.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    try:
        dry_run.measure(request, start, declared(callbacks))
    except GoOn:
        return


def this_run() -> _FabricRun | None:
    """Returns the run of this process, if it is a fork that rehearses a loop."""
    return _run


class _FabricRun(LoopRun):
    """Follows what the program does from here on, as Fabric and torch's loaders report it.

    Args:
        request: What is asked for.
        played: What this process has to find out.
        save: `Fabric.save`.
    """

    _no_batch = (
        "The program's loop took no batch of a torch DataLoader behind Fabric.setup: what it takes "
        "is not known. Iterate a DataLoader, or plan the module with a batch "
        "(lightning_gaudi.tools.plan.plan.plan_module)."
    )

    def __init__(self, request: Request, played: dry_run.Played, save: Callable[..., None]) -> None:
        super().__init__(request, played)
        self._save = save
        self._fabric: Any = None
        self._wrapped: list[Any] = []
        self._optimizers: list[Any] = []
        self._is_stepping = False
        register_optimizer_step_pre_hook(self._refuse_unknown)

    def note_setup(self, fabric: Any, module: Any) -> None:
        """Notes that a module is about to be set up."""
        model_changes.fill_weights()
        self._fabric = fabric
        if self._request.checkpointing is not None:
            model_changes.set_checkpointing(module, is_on=self._request.checkpointing)
        self._watch.note_made(module)

    def note_module(self, wrapped: Any) -> None:
        """Notes that a module is set up, as Fabric hands it out."""
        self._wrapped.append(wrapped)
        self.end_behind_exit()  # so that it runs before the handlers that end the process groups

    def note_optimizer(self, wrapped: Any) -> None:
        """Notes that an optimizer is set up, as Fabric hands it out."""
        self._optimizers.append(wrapped)

    def step(self, step: Callable[..., Any], optimizer: Any, closure: Any = None) -> Any:
        """Takes a step of an optimizer of Fabric's."""

        def closed() -> Any:
            found = closure()
            self.note_backward()
            return found

        if closure is None:
            self.note_backward()
        self._is_stepping = True
        output = step(optimizer, closed if closure is not None else None)
        self._is_stepping = False
        self.note_step(optimizer)
        return output

    def _refuse_unknown(self, optimizer: Any, *_: Any) -> None:
        if not self._is_stepping:
            raise ValueError(
                f"{type(optimizer).__name__} takes a step, and Fabric does not know of it, so it "
                "cannot be planned. Pass it to Fabric.setup or Fabric.setup_optimizers."
            )

    @property
    @override
    def modules(self) -> Sequence[Any]:
        return [each._forward_module for each in self._wrapped]

    @property
    @override
    def strategy(self) -> Any:
        return self._fabric.strategy

    @property
    @override
    def optimizers(self) -> list[Any]:
        return [each.optimizer for each in self._optimizers]

    @override
    def can_save(self, *, weights_only: bool) -> bool:
        has_engine = any(hasattr(each, "optimizer") for each in self.modules)
        if has_engine and weights_only:  # DeepSpeed always saves all that it has
            return False
        is_sharded = has_engine or hasattr(self.strategy, "saves_shards")
        return len(self.modules) == 1 or not is_sharded  # shards of one model alone can be saved

    @override
    def save(self, path: Path, *, weights_only: bool) -> None:
        state = {f"model {number}": each for number, each in enumerate(self._wrapped)}
        if not weights_only:
            state |= {f"optimizer {number}": each for number, each in enumerate(self._optimizers)}
        self._save(self._fabric, path, state)
