"""Measures the steps of a rehearsal, and the evaluation behind them.

The first step is counted: its operators are called one by one, and the optimizer makes its states.
The second compiles what is compiled. Of the third the memory is told.
"""

from __future__ import annotations

import importlib
from typing import Any

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.planning.batches import size_of
from lightning_gaudi.planning.case import Rehearsed
from lightning_gaudi.planning.work import Work
from lightning_gaudi.reliability.memory import REST, holders
from lightning_gaudi.simulator import statistics
from lightning_gaudi.simulator.memory import MemoryLog

NUM_STEPS = 3
"""Of the optimizer, or batches where nothing is trained."""


class Watch:
    """What a Trainer's run takes of a dry card.

    Args:
        trainer: It has not run yet.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._log = MemoryLog()
        self._work = Work()
        self._is_counting = False
        self._marks: dict[int, int] = {}
        self._batch_size = 0
        self._backward_bytes = 0
        self._collective_bytes: dict[str, int] = {}
        self._numbers: dict[str, set[int]] = {}

    def callback(self, family: Family) -> Any:
        """What tells this one how far the Trainer is."""
        base = importlib.import_module(f"{family.trainer}.callbacks").Callback
        return type("RehearsalCallback", (_Told, base), {"watch": self})()

    def begin(self, step: int, batch: Any) -> None:
        """Note a batch of a step, from 0 on."""
        self._batch_size = self._batch_size or size_of(batch)
        if step in self._marks:
            return
        self._end_counting()
        self._marks[step] = self._log.mark()
        if step == 0:
            statistics.reset_statistics()
            self._is_counting = True
            self._work.start()

    def note_backward(self) -> None:
        """Note what forward and backward have needed, as the optimizer is about to step."""
        if NUM_STEPS - 1 in self._marks:
            self._backward_bytes = self._log.peak(self._marks[NUM_STEPS - 1]).num_bytes
            self.note_holders()

    def note_holders(self) -> None:
        """Note which allocations are the model's and its optimizers'."""
        strategy = self._trainer.strategy
        for name, tensors in holders(strategy.model, strategy.optimizers).items():
            numbers = {self._log.number_of(each) for each in tensors}
            self._numbers.setdefault(name, set()).update(numbers)

    def found(self) -> Rehearsed:
        """What was measured, when the run has ended.

        Raises:
            ValueError: It had too few batches.
        """
        self._end_counting()
        if NUM_STEPS - 1 not in self._marks:
            raise ValueError(
                f"The program took {len(self._marks)} steps, and {NUM_STEPS} are needed to plan "
                "it. Give its loader more batches."
            )
        peak = self._log.peak(self._marks[NUM_STEPS - 1])
        before = self._log.peak(0, self._marks[0]).num_bytes
        compiled = self._log.peak(self._marks[1], self._marks[2]).num_bytes
        sizes = dict.fromkeys((*self._numbers, REST), 0)
        for number, num_bytes in peak.live.items():
            holder = next((name for name, found in self._numbers.items() if number in found), REST)
            sizes[holder] += num_bytes
        return Rehearsed(
            batch_size=self._batch_size,
            peak_bytes=peak.num_bytes,
            setup_bytes=max(before, compiled),
            backward_bytes=self._backward_bytes or peak.num_bytes,
            categories=sizes,
            flops=self._work.num_flops if self._work.is_complete else 0,
            moved_bytes=self._work.moved_bytes,
            collective_bytes=self._collective_bytes,
            num_micro_batches=self._trainer.accumulate_grad_batches,
        )

    def _end_counting(self) -> None:
        if self._is_counting:
            self._is_counting = False
            self._work.stop()
            counts = statistics.collective_stats()
            self._collective_bytes = {kind: each["bytes"] for kind, each in counts.items()}


class _Told:
    """The hooks of a callback."""

    watch: Watch

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.watch.begin(trainer.global_step, batch)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.watch.note_backward()

    def on_predict_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.watch.begin(batch_idx, batch)

    on_test_batch_start = on_predict_batch_start

    def on_validation_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.state.fn == "validate":  # and not within a fit
            self.on_predict_batch_start(trainer, *args)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.watch.note_holders()

    on_validation_end = on_test_end = on_predict_end = on_train_end
