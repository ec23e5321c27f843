"""A Trainer's run on a dry card.

The program is the user's. Its Trainer gets the strategy, cards and precision that are asked for,
and nothing that writes to the disk. What it would run is run in forks of the process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.tools.plan import dry_run, model_changes
from lightning_gaudi.tools.plan.batches import NUM_STEPS, Repeated
from lightning_gaudi.tools.plan.forks import Fork
from lightning_gaudi.tools.plan.measurement import Watch
from lightning_gaudi.tools.plan.published import declared
from lightning_gaudi.tools.plan.request import Counted, Rehearsed
from lightning_gaudi.tools.plan.run import Run

_DROPPED = (
    *("Checkpoint", "LearningRateMonitor", "DeviceStatsMonitor", "ThroughputMonitor", "Timer"),
    *("ProgressBar", "ModelSummary", "EarlyStopping", "OnExceptionCheckpoint"),
    *("SaveConfigCallback", "BasePredictionWriter", "RunReport"),
)
"""Callbacks that write, or want a logger, a score or a clock; those derived from them, too."""

_SETTINGS = {
    **{"logger": False, "profiler": None},
    **{"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False},
    **{"max_epochs": 1, "max_steps": -1, "max_time": None},
    **{"fast_dev_run": False, "overfit_batches": 0.0, "num_sanity_val_steps": 0},
    **{"val_check_interval": None, "check_val_every_n_epoch": 1},
    **{"limit_predict_batches": 1.0},
}
"""Of a Trainer that takes a few steps, and leaves nothing behind."""

_run: _TrainerRun | None = None
"""Of the fork that this process is."""


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a Trainer that rehearses, for those that a program has passed."""
    request = dry_run.read_request()
    found = {**given, **_SETTINGS, **dry_run.settings(request, given)}
    found["limit_train_batches"] = NUM_STEPS * (found.get("accumulate_grad_batches") or 1)
    for name in ("limit_val_batches", "limit_test_batches"):
        if limit := found.get(name):  # of a number, enough to measure; none stay none
            found[name] = limit if isinstance(limit, float) else max(NUM_STEPS, limit)
    callbacks = found.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    found["callbacks"] = [each for each in callbacks if not _is_dropped(each)]
    return found


def _is_dropped(callback: Any) -> bool:
    return any(kind.__name__ in _DROPPED for kind in type(callback).__mro__)


def rehearse(run: Callable[[], Any], trainer: Any, family: Family) -> NoReturn:
    """Measures what a run takes, for all that the request asks, and ends the program.

    Args:
        run: Has the Trainer fit, validate, test or predict.
        trainer: Its cards are dry.
        family: Of the Trainer.

    Raises:
        SystemExit: When all is measured.
    """
    request = dry_run.read_request()

    def start(make_watch: Callable[[Run], Watch], batch_size: int | None) -> Fork:
        def find() -> Counted | Rehearsed:
            measured = _TrainerRun(trainer, batch_size, request.checkpointing)
            return _find(run, measured, family, make_watch)

        return Fork(lambda teller: teller.end(find))

    if (played := dry_run.taken_over()) is not None:
        measured = _TrainerRun(trainer, played.batch_size, request.checkpointing)
        played.teller.end(lambda: _find(run, measured, family, played.make_watch))

    dry_run.measure(request, start, declared(trainer.callbacks))


def _find(
    run: Callable[[], Any],
    measured: _TrainerRun,
    family: Family,
    make_watch: Callable[[Run], Watch],
) -> Counted | Rehearsed:
    """Runs it in this process, a fork that ends behind it."""
    global _run
    model_changes.fill_weights()
    dry_run.begin_fork(family)
    _run = measured
    watch = make_watch(measured)
    measured.tell(watch, family)
    with suppress(_Over):
        run()
    return watch.found()


def loader_for(loader: Any, trainer: Any, stage: Any) -> Any:
    """Returns what a run iterates in place of a loader of the program's."""
    kind = stage.dataloader_prefix
    limit = getattr(trainer, f"limit_{kind}_batches")
    if hasattr(loader, "num_workers"):
        loader.num_workers = 0  # nobody waits for it here
    found = Repeated(
        loader,
        _run.batch_size if _run is not None else None,
        limit if stage.evaluating else None,
        has_others=kind != "train",
        least=1 if trainer.state.fn == "fit" else NUM_STEPS,
    )
    if _run is not None:
        _run.note_first_loader(loader)  # a fit's loader of training
    if _run is not None and _run.watch is not None and trainer.state.fn != "fit":
        _run.watch.note_loader(found.num_before, found.num_others)
    return found


class _Over(BaseException):
    """Ends a run: what is wanted of it is known."""


class _TrainerRun(Run):
    """What a Trainer is about to run.

    Args:
        trainer: It has not run yet.
        batch_size: Of all batches; None for the program's own.
        checkpointing: Whether activations are computed again; None for what the program says.
    """

    def __init__(self, trainer: Any, batch_size: int | None, checkpointing: bool | None) -> None:
        self._trainer = trainer
        self._checkpointing = checkpointing
        self.batch_size = batch_size
        self.watch: Watch | None = None
        self._empty_weights = model_changes.EmptyWeights()

    def tell(self, watch: Watch, family: Family) -> None:
        """Tells a watch how far it is, from now on."""
        self.watch = watch
        base = importlib.import_module(f"{family.trainer}.callbacks").Callback
        names = {"watch": watch, "run": self}
        self._trainer.callbacks.insert(0, type("RehearsalCallback", (_Told, base), names)())
        strategy = self._trainer.strategy
        set_up = strategy.setup

        def set_up_made(trainer: Any) -> None:
            self._empty_weights.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            module = trainer.lightning_module
            if self._checkpointing is not None:
                model_changes.set_checkpointing(module, is_on=self._checkpointing)
            watch.note_made(module)
            set_up(trainer)

        strategy.setup = set_up_made  # no callback is told between configure_model and it

    def note_making(self) -> None:
        """The module's hooks that may make weights come next; the data are set up."""
        self._empty_weights.__enter__()  # type: ignore[no-untyped-call]

    @property
    @override
    def strategy(self) -> Any:
        return self._trainer.strategy

    @property
    @override
    def model(self) -> Any:
        return self._trainer.strategy.model

    @property
    @override
    def optimizers(self) -> list[Any]:
        return [*self._trainer.strategy.optimizers]

    @property
    @override
    def is_trained(self) -> bool:
        return bool(self._trainer.state.fn == "fit")

    @property
    @override
    def num_micro_batches(self) -> int:
        return int(self._trainer.accumulate_grad_batches)

    @override
    def save(self, path: Path, *, weights_only: bool) -> None:
        self._trainer.save_checkpoint(path, weights_only=weights_only)

    @override
    def end(self) -> NoReturn:
        self._trainer.callbacks.clear()  # one of them may write a report of a run that fails
        # It would bring the whole model to the host, of which there may be too little.
        self._trainer.strategy.teardown = lambda: None
        raise _Over


class _Told:
    """The hooks of a callback."""

    watch: Watch
    run: _TrainerRun

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.run.note_making()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.watch.note_batch(trainer.global_step, batch)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.watch.note_backward()

    def on_predict_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.watch.note_evaluated(batch_idx, batch)

    on_test_batch_start = on_predict_batch_start

    def on_validation_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.state.fn == "validate":  # and not within a fit
            self.on_predict_batch_start(trainer, *args)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "fit":
            self.watch.note_evaluation()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.watch.note_end()

    on_validation_end = on_test_end = on_train_end  # in a fit it is the last evaluation's

    def on_predict_batch_end(
        self,
        trainer: Any,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.watch.note_predicted(batch_idx)
