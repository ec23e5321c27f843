"""Rehearses the run of a user's Trainer.

The Trainer gets the strategy, cards and precision that are asked for, and no callback that writes
to the disk. Its run takes place in forks of the process.
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
"""The callbacks, with their subclasses, that write, or need a logger, a score or a clock."""

_ACCUMULATION = "GradientAccumulationScheduler"
"""The callback whose largest number of micro batches is rehearsed."""

_SETTINGS = {
    **{"logger": False, "profiler": None},
    **{"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False},
    **{"max_epochs": 1, "max_steps": -1, "max_time": None},
    **{"fast_dev_run": False, "overfit_batches": 0.0, "num_sanity_val_steps": 0},
    **{"val_check_interval": None, "check_val_every_n_epoch": 1},
    **{"limit_predict_batches": 1.0},
}
"""The arguments of a Trainer that takes a few steps, and leaves nothing behind."""

_MANY_STEPS = 2**20
"""Of a program that says how many epochs it takes: its warm-up is shorter, whatever it is."""
_num_steps = _MANY_STEPS
"""Of the run that the Trainer was made for."""

_ENOUGH_MICRO_BATCHES = 4
"""Of a step: the first, the last, and of those between, which are alike, one behind another."""
_num_micro_batches = 1
"""Of a step of the run that the Trainer was made for."""

_run: _TrainerRun | None = None
"""The run that this process rehearses, if it is a fork."""


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a Trainer that rehearses, for those that a program has passed."""
    global _num_micro_batches, _num_steps
    steps = given.get("max_steps") or -1
    _num_steps = steps if steps > 0 else _MANY_STEPS
    request = dry_run.read_request()
    found = {**given, **_SETTINGS, **dry_run.settings(request, given)}
    for name in ("limit_val_batches", "limit_test_batches"):
        if limit := found.get(name):  # a number is raised so that it is enough; 0 stays 0
            found[name] = limit if isinstance(limit, float) else max(NUM_STEPS, limit)
    callbacks = found.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    found["callbacks"] = [each for each in callbacks if not _is_dropped(each)]
    schedules = [each.scheduling for each in callbacks if _is(each, _ACCUMULATION)]
    numbers = [
        found.get("accumulate_grad_batches") or 1,
        *(max(each.values()) for each in schedules),
    ]
    _num_micro_batches = max(numbers)
    rehearsed = min(_num_micro_batches, _ENOUGH_MICRO_BATCHES)
    found["accumulate_grad_batches"] = rehearsed
    config = getattr(found.get("strategy"), "config", None)
    if isinstance(config, dict) and config.get("gradient_accumulation_steps") == _num_micro_batches:
        config["gradient_accumulation_steps"] = rehearsed
    found["limit_train_batches"] = NUM_STEPS * rehearsed
    return found


def _is_dropped(callback: Any) -> bool:
    return _is(callback, *_DROPPED, _ACCUMULATION)


def _is(callback: Any, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(callback).__mro__)


def rehearse(run: Callable[[], Any], trainer: Any, family: Family) -> NoReturn:
    """Measures what a run takes in all ways that the request asks for, and ends the program.

    Args:
        run: Makes the Trainer fit, validate, test or predict.
        trainer: The Trainer, whose cards are dry.
        family: The family of the Trainer.

    Raises:
        SystemExit: All is measured.
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
    """Runs the Trainer in this process, a fork that ends afterwards."""
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
    """Returns the loader that a run iterates over in place of the program's."""
    kind = stage.dataloader_prefix
    limit = getattr(trainer, f"limit_{kind}_batches")
    if hasattr(loader, "num_workers"):
        loader.num_workers = 0  # workers would only cost time to start
    found = Repeated(
        loader,
        _run.batch_size if _run is not None else None,
        limit if stage.evaluating else None,
        has_others=kind != "train",
        least=1 if trainer.state.fn == "fit" else NUM_STEPS,
    )
    if _run is not None:
        _run.note_first_loader(loader)  # in a fit, that is the loader of training
    if _run is not None and _run.watch is not None and trainer.state.fn != "fit":
        _run.watch.note_loader(found.num_before, found.num_others)
    return found


class _Over(BaseException):
    """Ends a run once everything wanted of it is known."""


class _TrainerRun(Run):
    """The run of a Trainer.

    Args:
        trainer: The Trainer, which has not run yet.
        batch_size: The size of all batches; None for the program's own.
        checkpointing: Whether activations are computed again; None for what the program says.
    """

    def __init__(self, trainer: Any, batch_size: int | None, checkpointing: bool | None) -> None:
        self._trainer = trainer
        self._checkpointing = checkpointing
        self.batch_size = batch_size
        self.watch: Watch | None = None
        self._empty_weights = model_changes.EmptyWeights()

    def tell(self, watch: Watch, family: Family) -> None:
        """Tells a watch from now on how far the run is."""
        self.watch = watch
        base = importlib.import_module(f"{family.trainer}.callbacks").Callback
        names = {"watch": watch, "run": self}
        self._trainer.__class__ = type("Rehearsing", (_Long, type(self._trainer)), {})
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

        strategy.setup = set_up_made  # since no callback is called between it and configure_model

    def note_making(self) -> None:
        """Notes that the module's hooks which may make weights come next; the data are set up."""
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
        return _num_micro_batches

    @override
    def save(self, path: Path, *, weights_only: bool) -> None:
        self._trainer.save_checkpoint(path, weights_only=weights_only)

    @override
    def end(self) -> NoReturn:
        self._trainer.callbacks.clear()  # one of them may write a report of a failed run
        # It would bring the whole model to the host, whose memory may be too small.
        self._trainer.strategy.teardown = lambda: None
        raise _Over


class _Long:
    """A Trainer that tells schedules of its program's steps, and not of the few of a rehearsal.

    A warm-up of a hundred steps would have no room in these.
    """

    @property
    def estimated_stepping_batches(self) -> int:
        return _num_steps


class _Told:
    """The hooks of a callback, which tell a watch what happens."""

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
        if trainer.state.fn == "validate":  # but not within a fit
            self.on_predict_batch_start(trainer, *args)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "fit":
            self.watch.note_evaluation()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.watch.note_end()

    on_validation_end = on_test_end = on_train_end  # in a fit, the last evaluation's is the end

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
