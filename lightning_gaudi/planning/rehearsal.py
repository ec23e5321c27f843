"""A Trainer's run on a dry card: a few steps, and what they take.

The program is the user's. Its Trainer gets the strategy, cards and precision that are asked for,
and nothing that writes to the disk. What it would run is run in forks of the process, one for each
batch size, and then the program ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lightning_gaudi._core.mirror import Family
from lightning_gaudi._core.rehearsals import VARIABLE
from lightning_gaudi.planning.batches import NUM_STEPS, Repeated
from lightning_gaudi.planning.case import MAX_FORKS, Case, Counted, Rehearsed
from lightning_gaudi.planning.empty_weights import EmptyWeights
from lightning_gaudi.planning.published import declared
from lightning_gaudi.planning.search import Need, largest_within
from lightning_gaudi.planning.watch import Counts, MemoryWatch, Over
from lightning_gaudi.simulator.memory import own_server, unlimited_memory
from lightning_gaudi.simulator.rules.report import is_library

_DROPPED = (
    *("Checkpoint", "LearningRateMonitor", "DeviceStatsMonitor", "ThroughputMonitor", "Timer"),
    *("ProgressBar", "ModelSummary", "EarlyStopping", "OnExceptionCheckpoint"),
    *("SaveConfigCallback", "BasePredictionWriter"),
)
"""Callbacks that write, or want a logger, a score or a clock; those derived from them, too."""

_SETTINGS = {
    **{"accelerator": "hpu", "num_nodes": 1, "logger": False, "profiler": None},
    **{"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False},
    **{"max_epochs": 1, "max_steps": -1, "max_time": None},
    **{"fast_dev_run": False, "overfit_batches": 0.0, "num_sanity_val_steps": 0},
    **{"val_check_interval": None, "check_val_every_n_epoch": 1},
    **{"limit_predict_batches": 1.0},
}
"""Of a Trainer that takes a few steps, and leaves nothing behind."""

_SEARCH_S = 300.0
"""For how long the largest batch is looked for; what is measured then is measured to its end."""

_empty_weights = EmptyWeights()

_Watch = Counts | MemoryWatch

_batch_size: int | None = None
"""Of the fork that this process is; None for the program's own."""

_watch: _Watch | None = None
"""Of the fork that this process is."""


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer that rehearses, for those that a program has passed."""
    case = _case()
    found = {**given, **_SETTINGS, "devices": case.devices}
    found["limit_train_batches"] = NUM_STEPS * (found.get("accumulate_grad_batches") or 1)
    for name in ("limit_val_batches", "limit_test_batches"):
        if limit := found.get(name):  # of a number, enough to measure; none stay none
            found[name] = limit if isinstance(limit, float) else max(NUM_STEPS, limit)
    if case.strategy is not None:
        found["strategy"] = case.strategy
    if case.precision is not None:
        found["precision"] = case.precision
    callbacks = found.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    found["callbacks"] = [each for each in callbacks if not _is_dropped(each)]
    return found


def _is_dropped(callback: Any) -> bool:
    return any(kind.__name__ in _DROPPED for kind in type(callback).__mro__)


def rehearse(run: Callable[[], Any], trainer: Any, model: Any, family: Family) -> None:
    """Measure what a run takes, for all that the case asks, and end the program.

    Args:
        run: Has the Trainer fit, validate, test or predict.
        trainer: Its cards are dry.
        model: Of the run; None where the Trainer has it.
        family: Of the Trainer.

    Raises:
        SystemExit: When all is measured.
    """
    case = _case()

    def start(watch: Callable[[Any], _Watch], batch_size: int | None) -> Fork:
        return Fork(lambda: _run(run, trainer, model, case, batch_size, family, watch))

    def needs(batch_sizes: Collection[int]) -> dict[int, Need]:
        found, forks = {}, dict[int, Fork]()
        for size in batch_sizes:
            if len(forks) >= MAX_FORKS:
                done = next(iter(forks))
                found[done] = Rehearsed(**forks.pop(done).found()).need
            forks[size] = start(MemoryWatch, size)
        return found | {size: Rehearsed(**fork.found()).need for size, fork in forks.items()}

    try:
        measure = partial(MemoryWatch, is_thorough=True)
        counting, measuring = (start(each, case.batch_size) for each in (Counts, measure))
        first = Rehearsed(**measuring.found())
        run_published = declared(trainer.callbacks)
        _write(
            case,
            {
                "rehearsed": asdict(first),
                "counted": counting.found(),
                "published": asdict(run_published) if run_published else None,
            },
        )
        end = time.monotonic() + _SEARCH_S
        found = largest_within(
            needs, case.budgets, {first.batch_size: first.need}, lambda: time.monotonic() > end
        )
        _write(case, {"largest": found.sizes, "is_complete": found.is_complete})
    except RehearsalError as error:
        _write(case, {"error": str(error)})
        raise SystemExit(1) from None
    raise SystemExit(0)


def _case() -> Case:
    return Case.load(Path(os.environ[VARIABLE]))


def _write(case: Case, found: dict[str, Any]) -> None:
    with Path(case.result).open("a") as file:
        file.write(json.dumps(found) + "\n")


class Fork:
    """A fork of this process, which has used no card: each fork uses its own.

    Args:
        find: What it does; it returns a dataclass of plain data.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _tell(find, writer)
        os.close(writer)

    def found(self) -> dict[str, Any]:
        """The fields of what it has found; waits for it.

        Raises:
            RehearsalError: The program cannot be rehearsed.
        """
        with os.fdopen(self._reader) as file:
            text = file.read()
        _, status = os.waitpid(self._pid, 0)
        found = json.loads(text or "{}")
        if "found" not in found:
            how = f"the process ended with status {os.waitstatus_to_exitcode(status)}"
            raise RehearsalError(found.get("error", how))
        fields: dict[str, Any] = found["found"]
        return fields


def _tell(find: Callable[[], Any], writer: int) -> NoReturn:
    """Write what was found, and end this process."""
    status = 1
    try:
        with os.fdopen(writer, "w") as file:
            found: dict[str, Any]
            try:
                found = {"found": asdict(find())}
                status = 0
            except BaseException as error:
                found = {"error": _explain(error)}
            file.write(json.dumps(found))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class RehearsalError(RuntimeError):
    """A program cannot be rehearsed; the message says why, and where."""


def _explain(error: BaseException) -> str:
    """What went wrong, and at which line of the user's."""
    kind = type(error).__name__
    place = _place_of_user(error)
    hint = ""
    if isinstance(error, NotImplementedError):
        hint = (
            " On a dry card nothing has values: an operator whose result has a size that depends "
            "on them cannot be planned. Give it a size, or leave it out of what is planned."
        )
    return f"{kind}: {str(error).strip()}{hint}{place}"


def _place_of_user(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        is_of_library = "site-packages" in path.parts or any(map(is_library, path.parts))
        if not is_of_library and path.exists():
            return f" ({path}, line {frame.lineno})"
    return ""


def _run(
    run: Callable[[], Any],
    trainer: Any,
    model: Any,
    case: Case,
    batch_size: int | None,
    family: Family,
    make_watch: Callable[[Any], _Watch],
) -> Counted | Rehearsed:
    """Run it in this process, a fork that ends behind it."""
    global _batch_size, _watch
    _batch_size = batch_size
    _empty_weights.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    unlimited_memory()
    own_server()
    group = family.find("distributed.process_group")
    group._check_cards = lambda node_rank: None  # the other ranks are not there
    if case.checkpointing is not None and model is not None:
        _set_checkpointing(model, is_on=case.checkpointing)
    _watch = watch = make_watch(trainer)
    trainer.callbacks.insert(0, watch.callback(family))
    with suppress(Over):
        run()
    return watch.found()


def begin() -> None:
    """Have the models that the program makes from now on take no memory."""
    _empty_weights.__enter__()  # type: ignore[no-untyped-call]


def loader_for(loader: Any, trainer: Any, stage: Any) -> Any:
    """What a run iterates in place of a loader of the program's."""
    kind = stage.dataloader_prefix
    limit = getattr(trainer, f"limit_{kind}_batches")
    if hasattr(loader, "num_workers"):
        loader.num_workers = 0  # nobody waits for it here
    found = Repeated(
        loader, _batch_size, limit if stage.evaluating else None, has_others=kind != "train"
    )
    if _watch is not None and trainer.state.fn != "fit":
        _watch.note_loader(found.num_before, found.num_others)
    return found


def _set_checkpointing(model: Any, *, is_on: bool) -> None:
    """Have modules of transformers compute activations again in backward, or not."""
    names = (
        ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        if is_on
        else ("activation_checkpointing_disable", "gradient_checkpointing_disable")
    )
    for module in model.modules():
        for name in names:
            switch = getattr(module, name, None)
            if switch is not None:
                with suppress(ValueError):  # of a model that cannot
                    switch()
                break
