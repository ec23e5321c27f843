"""`HPUProfiler`: `Trainer(profiler="hpu")`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.profilers.pytorch import RegisterRecordFunction
from torch.profiler import ProfilerAction
from typing_extensions import override

from .recording import Recorder
from .report import TraceReport
from .schedule import check_schedule, default_schedule, planned_steps
from .settings import check_settings, check_sort_key
from .steps import SYNCS, StepMeter, device_totals

# By stage, Lightning's names for fetching a batch and for the step; and what the step is called.
_ACTIONS = {
    "fit": (".train_dataloader_next", "run_training_batch", "training"),
    "validate": (".val_next", ".validation_step", "validation"),
    "test": (".test_next", ".test_step", "test"),
    "predict": (".predict_next", ".predict_step", "prediction"),
}
_EPOCH = "run_training_epoch"


class HPUProfiler(Profiler):
    """Where a run's time goes: `Trainer(profiler="hpu")`.

    Of every step it measures, without waiting for the device, the time on the host, the gap to the
    next step, and what the device counts: host syncs, graph compilations and their time. Of a few
    steps it takes a trace, one file a rank: `fit-rank0.4.pt.trace.json` ends with step 4, the first
    step being 0. Perfetto, chrome://tracing and TensorBoard show it. The device is in it, too,
    where torch or the vendor can record it; the summary says where they cannot.
    """

    # Set by the Trainer before `setup`.
    _lightning_module: pl.LightningModule | None = None
    _recorder: Recorder | None = None
    _modules: RegisterRecordFunction | None = None

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 10,
        sort_by_key: str | None = None,
        record_module_names: bool = False,
        schedule: Callable[[int], ProfilerAction] | None = None,
        **profiler_kwargs: Any,
    ) -> None:
        """Choose what to record, and where to.

        Args:
            dirpath: Folder for traces and reports; by default the logger's folder, or
                `default_root_dir`.
            filename: Write each rank's summary to `<stage>-<filename>-rank<rank>.txt`; by default
                rank 0 shows its own.
            group_by_input_shapes: Tell operators of different input shapes apart.
            export_to_chrome: Write the traces.
            row_limit: Number of operators in the summary; -1 for all.
            sort_by_key: What to sort them by, one of `settings.SORT_KEYS`; by default
                `self_cpu_time_total`.
            record_module_names: Name the modules in the trace, by hooks on each of them.
            schedule: Says of each step what to do, as for `torch.profiler`; by default step 1
                warms up and steps 2 to 4 are recorded, or all of a run of fewer than 5 steps.
            profiler_kwargs: Further arguments for `torch.profiler.profile`.

        Raises:
            MisconfigurationException: A setting is unknown, for another device, or contradicts
                another one.
            TypeError: torch's profiler has no such argument.
        """
        super().__init__(dirpath=dirpath, filename=filename)
        self._on_trace_ready = profiler_kwargs.pop("on_trace_ready", None)
        self._activities: Iterable[Any] | None = profiler_kwargs.pop("activities", None)
        check_settings(profiler_kwargs)
        check_sort_key(sort_by_key := sort_by_key or "self_cpu_time_total")
        if schedule is not None:
            check_schedule(schedule)
        if group_by_input_shapes and not profiler_kwargs.setdefault("record_shapes", True):
            raise MisconfigurationException(
                "HPUProfiler(group_by_input_shapes=True) needs the shapes, but record_shapes=False "
                "leaves them out. Pass one of the two."
            )
        self._profiler_kwargs = profiler_kwargs
        self._schedule = schedule
        self._exports = export_to_chrome
        self._names_modules = record_module_names
        self._by_shape = group_by_input_shapes
        self._sort_by = sort_by_key.replace("hpu", "device")
        self._row_limit = row_limit
        self._reset(trainer=None)

    @override
    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin anew, for `stage`."""
        super().setup(stage, local_rank, log_dir)
        self._stop()
        trainer = None if self._lightning_module is None else self._lightning_module.trainer
        if self.dirpath is None and trainer is not None:
            self.dirpath = trainer.default_root_dir
        self._reset(trainer)

    @override
    @contextmanager
    def profile(self, action_name: str) -> Generator[str, None, None]:
        """Measure what is done in the `with` block; the trace shows it under this name."""
        with super().profile(action_name):
            try:
                yield action_name
            except BaseException:
                # No summary follows, but the trace of a failed fit may tell why it failed.
                if action_name == _EPOCH:
                    self._stop()
                raise

    @override
    def start(self, action_name: str) -> None:
        """Begin an action, Lightning's or the user's."""
        fetch, step, _ = self._actions
        if action_name.endswith(fetch):
            self._end_step()
            self._begin_step()
            self._meter.fetch_started()
        elif action_name.endswith(step):
            self._meter.step_started()
        elif self._is_no_step(action_name):
            self._leave_steps()
        if self._recorder is not None:
            self._recorder.enter(action_name)

    @override
    def stop(self, action_name: str) -> None:
        """End the action."""
        fetch, step, _ = self._actions
        if self._recorder is not None:
            self._recorder.exit(action_name)
        if action_name.endswith(fetch):
            self._meter.fetch_stopped()
        elif action_name.endswith(step):
            self._meter.step_stopped()
        elif action_name == _EPOCH:
            self._leave_steps()

    @override
    def summary(self) -> str:
        """What the steps cost, where the trace is, what it lacks, and the operators in it."""
        self._end_step()
        self._stop()
        name, num_steps = self._actions[2], self._meter.num_steps
        if not num_steps:
            return f"HPU profile: no {name} step was run."
        steps = f"{num_steps} {name} step{'s' if num_steps > 1 else ''}"
        self._note_what_is_missing()
        lines = [
            f"HPU profile of {steps}, rank {self._rank} of {self._world_size}",
            self._meter.table(),
            *self._report.lines,
            *self._report.notes,
            self._report.operators,
        ]
        return "\n".join(line for line in lines if line) + "\n"

    @override
    def teardown(self, stage: str | None) -> None:
        """Record no more."""
        self._stop()
        super().teardown(stage)

    @property
    def _actions(self) -> tuple[str, str, str]:
        return _ACTIONS[self._stage or "fit"]

    def _reset(self, trainer: pl.Trainer | None) -> None:
        if trainer is None:
            self._device, self._rank, self._world_size = "hpu", int(os.environ.get("RANK", 0)), 1
        else:
            self._device = trainer.strategy.root_device.type
            # Among all processes, not only this node's.
            self._rank, self._world_size = trainer.global_rank, trainer.world_size
        self._meter = StepMeter(device_totals if self._device == "hpu" else dict)
        self._recorder = None
        self._report = TraceReport(self._rank, self._sort_by, self._row_limit, self._by_shape)

    def _begin_step(self) -> None:
        if self._meter.is_open:
            return
        if self._recorder is None:
            self._start_recorder()
        self._meter.open()

    def _start_recorder(self) -> None:
        module = self._lightning_module
        if self._schedule is not None:
            schedule = self._schedule
        elif module is None:
            schedule = default_schedule(math.inf)
        else:
            schedule = default_schedule(planned_steps(module.trainer, self._stage or "fit"))
        with warnings.catch_warnings():
            if self._schedule is None:
                # A run that is too short for it has no step to warm up.
                warnings.filterwarnings("ignore", "Profiler won't be using warmup")
            self._recorder = Recorder(
                schedule, self._activities, self._device == "hpu", self._save, self._profiler_kwargs
            )
        if self._names_modules and module is not None:
            self._modules = RegisterRecordFunction(module)
            self._modules.__enter__()

    def _end_step(self) -> None:
        if self._meter.close() and self._recorder is not None:
            self._recorder.advance()

    def _is_no_step(self, action_name: str) -> bool:
        """Whether what Lightning does now is no part of a step, and ends one."""
        if self._stage == "fit" and ".on_validation_" in action_name:
            return True
        return action_name.endswith("_epoch_end") or action_name == "save_checkpoint"

    def _leave_steps(self) -> None:
        """What follows belongs to no step."""
        self._end_step()
        self._meter.forget_gap()

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
        if self._modules is not None:
            self._modules.__exit__(None, None, None)
            self._modules = None

    def _save(self, profile: Any, steps: list[int]) -> None:
        self._report.describe(profile, steps)
        if self._on_trace_ready is not None:
            self._on_trace_ready(profile)
        elif self._exports:
            # TensorBoard reads the name as worker, number, and what it is.
            name = self._prepare_filename(extension=f".{steps[-1]}.pt.trace.json")
            target = os.path.join(str(self.dirpath or "."), name)  # noqa: PTH118 (may be a URL)
            assert self._recorder is not None
            self._report.save(profile, steps, target, self._recorder.has_hpu)

    def _note_what_is_missing(self) -> None:
        recorder, report = self._recorder, self._report
        if recorder is not None and recorder.problem is not None:
            report.note(recorder.problem)
        elif not report.operators:
            report.note("No trace: the schedule recorded none of these steps.")
        if self._device != "hpu":
            report.note(
                f"Not on an HPU but on {self._device}: host syncs and graph compilations are not "
                "counted, and the trace shows the host only."
            )
        elif not self._meter.values[SYNCS]:
            reads = ""
            if report.reads:
                reads = f" The traced steps called .item() {report.reads}, CPU tensors included."
            report.note(f"This device does not count host syncs.{reads}")

    @override
    def _prepare_filename(self, action_name: str | None = None, extension: str = ".txt") -> str:
        """Lightning's file names, but always with the rank, and that among all nodes."""
        parts = [self._stage or "", self.filename or "", f"rank{self._rank}", action_name or ""]
        return "-".join(part for part in parts if part) + extension

    @override
    def _prepare_streams(self) -> None:
        try:
            super()._prepare_streams()
        except OSError as error:
            warnings.warn(
                f"HPUProfiler on rank {self._rank} cannot write its summary to "
                f"dirpath={str(self.dirpath)!r} and shows it instead: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._write_stream = self._rank_zero_info

    @override
    def _rank_zero_info(self, *args: Any, **kwargs: Any) -> None:
        if self._rank == 0:
            self._local_rank = 0
            super()._rank_zero_info(*args, **kwargs)
