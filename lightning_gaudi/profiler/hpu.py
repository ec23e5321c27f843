"""`HPUProfiler`, for `Trainer(profiler="hpu")`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.profilers import Profiler, PyTorchProfiler
from typing_extensions import override

from lightning_gaudi._core.recompilations import Recompilations
from lightning_gaudi.untrusted import read_integer

from .modules import ModuleRanges
from .recording import Recorded, Recorder
from .report import TraceReport
from .schedule import AskedSchedule, check_schedule, schedule_for
from .settings import SORT_KEYS, check_sort_key, trace_settings
from .steps import EPOCH, STAGES, Stage, StepMeter, device_totals
from .table import OperatorTable


class RankFiles(Profiler):
    """A profiler with the global rank in its file names, which survives a folder it cannot use."""

    _rank: int

    @override
    def _prepare_filename(self, action_name: str | None = None, extension: str = ".txt") -> str:
        """Returns Lightning's file name with the rank among all nodes added."""
        parts = [self._stage or "", self.filename or "", f"rank{self._rank}", action_name or ""]
        return "-".join(part for part in parts if part) + extension

    def _path(self, extension: str) -> str:
        """Returns the path of a file of this rank, or its URL."""
        name = self._prepare_filename(extension=extension)
        return os.path.join(str(self.dirpath or "."), name)  # noqa: PTH118 (may be a URL)

    @override
    def _prepare_streams(self) -> None:
        try:
            super()._prepare_streams()
        except OSError as error:
            warnings.warn(
                f"{type(self).__name__} on rank {self._rank} cannot write its summary to "
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


class HPUProfiler(RankFiles, PyTorchProfiler):
    """Shows where a run's time goes: `Trainer(profiler="hpu")`.

    For every step it measures, without waiting for the device, the time on the host, the gap to the
    next step, and the device's counts: launches, host syncs, CPU fallbacks, graph compilations and
    their time, and the shapes for which graphs were compiled again. It traces a few steps to one
    file for each rank: `fit-rank0.4.pt.trace.json` ends with step 4, where the first step is 0.
    Perfetto, chrome://tracing and TensorBoard show it. The trace includes the device if torch or
    the vendor can record it, and the summary says if they cannot.

    As in Lightning's `PyTorchProfiler`, `function_events` holds the events of the last trace, of
    any stage, and is None before the first. Unlike there, a step lasts from fetching its batch to
    fetching the next, and in `fit` it is a training step.
    """

    AVAILABLE_SORT_KEYS = set(SORT_KEYS)  # noqa: RUF012 (Lightning's attribute, and its type)

    _recorder: Recorder | None = None

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        # Keyword-only from here: lightning-habana has export_to_chrome in this position, and
        # Lightning emit_nvtx.
        *,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: dict[str, Any] | None = None,
        schedule: AskedSchedule = "default",
        **profiler_kwargs: Any,
    ) -> None:
        """Creates the profiler.

        Args:
            dirpath: Folder for traces and reports; by default the logger's folder, or
                `default_root_dir`.
            filename: Write each rank's summary to `<stage>-<filename>-rank<rank>.txt`; by default
                rank 0 shows its own.
            group_by_input_shapes: Tell operators of different input shapes apart; records shapes.
            emit_nvtx: Refused: it is for NVIDIA's profilers.
            export_to_chrome: Write the traces.
            row_limit: Number of operators in the summary; -1 for all.
            sort_by_key: What to sort them by, one of `settings.SORT_KEYS`; by default
                `self_cpu_time_total`, or with `use_hpu=True` `hpu_time_total`.
            record_module_names: Put the forward of each submodule into the trace, by hooks that
                are there while a step is recorded. Compiled code has none.
            table_kwargs: Show torch's table of operators in the place of ours, with these arguments
                of its `EventList.table`.
            schedule: Returns what to do in each step, as for `torch.profiler`. By default step 1
                warms up and steps 2 to 4 are recorded; of a run of fewer than 5 steps everything
                is recorded, between the steps, too. None records everything from the first action
                to `describe`, also outside of a Trainer.
            profiler_kwargs: Further arguments for `torch.profiler.profile`. Besides, as in
                Lightning, `export_to_flame_graph=True` writes `<stage>-rank<rank>.<step>.stack`,
                weighed by `metric`: `self_cpu_time_total` or `self_hpu_time_total`.

        Raises:
            KeyError: torch's table has no such argument.
            MisconfigurationException: A setting is unknown, for another device, or contradicts
                another one.
            TypeError: torch's profiler has no such argument.
        """
        # Lightning's default schedule cannot be pickled, and its default key is CUDA's on a machine
        # with a GPU. So ours are kept here, and Lightning gets neutral values.
        super().__init__(
            dirpath=dirpath,
            filename=filename,
            export_to_chrome=export_to_chrome,
            row_limit=row_limit,
            sort_by_key="cpu_time_total",
            record_module_names=record_module_names,
            table_kwargs=table_kwargs,
            schedule=None,
        )
        by_device = profiler_kwargs.pop("use_hpu", False)
        self._sort_by_key = sort_by_key or (
            "hpu_time_total" if by_device else "self_cpu_time_total"
        )
        check_sort_key(self._sort_by_key)
        check_schedule(schedule)
        self._asked_schedule = schedule
        self._group_by_input_shapes = group_by_input_shapes
        self._trace = trace_settings(
            {"emit_nvtx": emit_nvtx, **profiler_kwargs},
            by_shape=group_by_input_shapes,
            exports_trace=export_to_chrome,
        )
        self._reset(trainer=None)

    @override
    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Resets the profiler for `stage`."""
        if self._stage is None and self._recorder is not None:
            self._recorder.discard()
        self._stop()
        super().setup(stage, local_rank, log_dir)
        trainer = None if self._lightning_module is None else self._lightning_module.trainer
        if self.dirpath is None and trainer is not None:
            self.dirpath = trainer.default_root_dir
        self._reset(trainer)

    @override
    @contextmanager
    def profile(self, action_name: str) -> Generator[str, None, None]:
        """Measures the block, which the trace shows under this name."""
        with super().profile(action_name):
            try:
                yield action_name
            except BaseException:
                # No summary follows a failure, but the trace may show why the run has failed.
                if action_name.endswith(self._names.outermost):
                    self._stop()
                raise

    @override
    def start(self, action_name: str) -> None:
        """Begins an action, Lightning's or the user's."""
        if self._recorder is None and self._records_around_steps(action_name):
            self._start_recorder()
        names = self._names
        if action_name.endswith(names.fetch):
            self._end_step()
            self._begin_step()
            self._meter.fetch_started()
        elif action_name.endswith(names.step):
            self._meter.step_started()
        elif names.is_between_steps(action_name):
            self._leave_steps()
        if self._recorder is not None:
            self._recorder.enter(action_name)

    @override
    def stop(self, action_name: str) -> None:
        """Ends the action."""
        names = self._names
        if self._recorder is not None:
            self._recorder.exit(action_name)
        if action_name.endswith(names.fetch):
            self._meter.fetch_stopped()
        elif action_name.endswith(names.step):
            self._meter.step_stopped()
        elif action_name == EPOCH:
            self._leave_steps()

    @override
    def summary(self) -> str:
        """Returns the costs of the steps, the trace's path, what it lacks, and its operators."""
        self._end_step()
        self._stop()
        if problem := None if self._recorder is None else self._recorder.problem:
            self._report.note(problem)
        if self._stage is None and self._asked_schedule is not None:
            self._report.note("Outside a Trainer, only HPUProfiler(schedule=None) records.")
        return self._report.text(self._names.title, self._meter, self._device, self._world_size)

    @override
    def teardown(self, stage: str | None) -> None:
        """Stops recording."""
        self._stop()
        if self._stage is None:
            self._recorder = None
        super().teardown(stage)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the model, for which Lightning holds a weak proxy."""
        return {**vars(self), "_lightning_module": None}

    @property
    def _names(self) -> Stage:
        return STAGES[self._stage or "fit"]

    def _reset(self, trainer: pl.Trainer | None) -> None:
        if trainer is None:
            self._device, self._rank, self._world_size = "hpu", read_integer("RANK", 0), 1
        else:
            self._device = trainer.strategy.root_device.type
            # Among all processes, not only this node's.
            self._rank, self._world_size = trainer.global_rank, trainer.world_size
        is_hpu = self._device == "hpu"
        self._meter = StepMeter(device_totals, Recompilations()) if is_hpu else StepMeter()
        self._recorder = None
        self._new_report()

    def _new_report(self) -> None:
        self.function_events = None
        table = OperatorTable(
            self._sort_by_key, self._row_limit, self._group_by_input_shapes, self._table_kwargs
        )
        self._report = TraceReport(self._rank, table)

    def _begin_step(self) -> None:
        if self._meter.is_open:
            return
        recorder = self._recorder or self._start_recorder()
        recorder.begin_step()
        self._meter.open()

    def _start_recorder(self) -> Recorder:
        self._new_report()
        module = self._lightning_module
        trainer = None if module is None else module.trainer
        self._recorder = Recorder(
            schedule_for(self._asked_schedule, trainer, self._names.name),
            self._trace.activities,
            self._device == "hpu",
            self._save,
            self._trace.arguments,
            ModuleRanges(module) if self._record_module_names and module is not None else None,
        )
        self.profiler = self._recorder.profile
        return self._recorder

    def _records_around_steps(self, action_name: str) -> bool:
        """Returns whether recording begins with this action.

        It does not begin with an action of the Trainer's before `setup`: this process is not bound
        to a card then, and torch's profiler might open one.
        """
        is_early = self._stage is None and action_name.startswith("[")
        return self._asked_schedule is None and not is_early

    def _end_step(self) -> None:
        if self._meter.close() and self._recorder is not None:
            self._recorder.advance()

    def _leave_steps(self) -> None:
        """Ends the step, and charges what follows to none."""
        self._end_step()
        self._meter.forget_gap()

    def _stop(self) -> None:
        self.profiler = None
        if self._recorder is not None:
            self._recorder.stop()

    def _save(self, profile: Any, recorded: Recorded) -> None:
        report, trace = self._report, self._trace
        self.function_events = report.describe(profile, recorded)
        if trace.on_ready is not None:
            trace.on_ready(profile)
        number = f".{recorded.steps[-1]}" if recorded.steps else ""
        if trace.exports_trace:
            # TensorBoard reads the name as worker, number, and what it is.
            has_hpu = self._recorder is not None and self._recorder.has_hpu
            report.save(profile, recorded, self._path(f"{number}.pt.trace.json"), has_hpu)
        if trace.stacks_by is not None:
            report.save_stacks(profile, recorded, self._path(f"{number}.stack"), trace.stacks_by)
