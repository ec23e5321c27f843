"""Measures the steps of a rehearsal, and the evaluation behind them.

Their memory is told of the third step: the first makes the optimizer's states, and the second is
the first that is compiled with them. What a step computes and sends is counted in another run: an
operator is seen as it is called, which keeps torch from compiling it.
"""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

import torch
from torch import Tensor
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi._core.mirror import Family
from lightning_gaudi.planning import host
from lightning_gaudi.planning.batches import NUM_STEPS, size_of
from lightning_gaudi.planning.case import Counted, Rehearsed
from lightning_gaudi.planning.empty_weights import EmptyWeights
from lightning_gaudi.planning.work import Work
from lightning_gaudi.reliability.holders import PRECEDENCE, STAYING, gathers, holders
from lightning_gaudi.reliability.memory import REST
from lightning_gaudi.simulator import observer, statistics
from lightning_gaudi.simulator.memory import MemoryLog

_GROWTH = 1.01
"""How much more than ever before is in use where it is worth another look: each takes milliseconds,
and what is new in between is found behind backward, at the end, or by the next collective."""


class Over(BaseException):
    """Ends a run: what is wanted of it is known."""


class Watch:
    """Is told how far a Trainer's run on a dry card is.

    Args:
        trainer: It has not run yet.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._num_begun = 0
        self._step = -1
        self._num_before: int | None = None
        self._num_others = 0
        self._empty_weights = EmptyWeights()
        set_up = trainer.strategy.setup

        def set_up_made(trainer: Any) -> None:
            self.note_made()
            set_up(trainer)

        trainer.strategy.setup = set_up_made  # no callback is told between configure_model and it

    def callback(self, family: Family) -> Any:
        """What tells this one."""
        base = importlib.import_module(f"{family.trainer}.callbacks").Callback
        return type("RehearsalCallback", (_Told, base), {"watch": self})()

    def note_making(self) -> None:
        """The module's hooks that may make weights come next; the data are set up."""
        self._empty_weights.__enter__()  # type: ignore[no-untyped-call]

    def note_made(self) -> None:
        """The strategy is about to set up what the module has made."""
        self._empty_weights.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def note_loader(self, num_before: int, num_others: int) -> None:
        """A loader is made ready.

        Args:
            num_before: Its batches before those that are watched.
            num_others: These, and those behind.
        """
        if self._num_before is None:  # of the first one, where there are several
            self._num_before, self._num_others = num_before, num_others

    def note_evaluated(self, number: int, batch: Any) -> None:
        """A batch comes next where nothing is trained, with this number of its loader."""
        if number >= (self._num_before or 0):
            self.note_batch(number, batch)

    def note_predicted(self, number: int) -> None:
        """A batch of a prediction is through; nothing of it is to be written."""
        if number == self._num_others + NUM_STEPS - 1:
            self.note_end()

    def note_batch(self, step: int, batch: Any) -> None:
        """A batch comes next; between two there may be steps of several optimizers, or none."""
        if step != self._step and self._num_begun < NUM_STEPS:
            self._step = step
            self._num_begun += 1
            self.begin(self._num_begun - 1, batch)

    def begin(self, step: int, batch: Any) -> None:
        """A step's first batch comes next."""

    def note_backward(self) -> None:
        """The optimizer is about to step."""

    def note_evaluation(self) -> None:
        """The evaluation behind the steps is about to begin."""

    def note_end(self) -> None:
        """All batches are through, and what the program does with that does not matter."""
        self._end()

    def _end(self) -> NoReturn:
        self._trainer.callbacks.clear()  # one of them may write a report of a run that fails
        # It would bring the whole model to the host, of which there may be too little.
        self._trainer.strategy.teardown = lambda: None
        raise Over

    def _need(self, num_steps: int) -> None:
        if self._num_begun < num_steps:
            raise ValueError(
                f"The program took {self._num_begun} steps, and {num_steps} are needed to plan "
                "it. Give its loader more batches."
            )


class Counts(Watch):
    """What a step computes and sends: the first that trains, or the second where nothing does.

    The first batch of a prediction may be run several times, to warm up.
    """

    @override
    def begin(self, step: int, batch: Any) -> None:
        if step == 0:
            statistics.reset_statistics()
            # A frame that must be compiled whole would refuse to be looked at.
            torch.compiler.set_stance("force_eager")
            self._work = Work(holders(self._trainer.strategy.model, [])["weights"])
            self._work.start()
            self._warm_up = 0 if self._trainer.state.fn == "fit" else 1
            self._before = self._work.so_far()
        elif step == self._warm_up:
            self._before = self._work.so_far()
        else:
            self._end()

    def found(self) -> Counted:
        """What was counted, when the run has ended.

        Raises:
            ValueError: It had no batch.
        """
        self._need(1)
        self._work.stop()
        found = self._work.so_far().since(self._before)
        return Counted(
            flops=found.flops if self._work.is_complete else 0,
            moved_bytes=found.moved_bytes,
            collective_bytes=dict(found.sent),
            num_micro_batches=self._trainer.accumulate_grad_batches,
            weight_bytes=found.weight_bytes,
            num_replicas=_num_replicas(self._trainer.strategy),
        )


def _num_replicas(strategy: Any) -> int:
    found = getattr(strategy, "distributed_sampler_kwargs", None) or {}
    return int(found.get("num_replicas", 1))


class MemoryWatch(Watch):
    """What the steps take of the card.

    Args:
        trainer: It has not run yet.
        is_thorough: Whether to tell whose memory is what, and what is taken beside the card; the
            amounts alone are faster.
    """

    def __init__(self, trainer: Any, *, is_thorough: bool = False) -> None:
        super().__init__(trainer)
        self._is_thorough = is_thorough
        self._host: dict[str, int] = {}
        self._checkpoint: dict[str, int] = {}
        self._end_mark: int | None = None
        self._log = MemoryLog()
        self._marks: list[int] = []
        self._batch_size = 0
        self._growing_bytes = 0
        self._evaluation_mark: int | None = None
        self._numbers: dict[str, set[int]] = {}
        self._held_bytes = 0
        self._most = 0
        self._gathers = False
        self._is_behind_collective = False

    @override
    def note_made(self) -> None:
        super().note_made()
        if self._is_thorough:
            self._host[host.MADE] = host.made_bytes(self._trainer.lightning_module)

    @override
    def begin(self, step: int, batch: Any) -> None:
        self._batch_size = self._batch_size or size_of(batch)
        self._marks.append(self._log.mark())
        if step == NUM_STEPS - 1 and self._is_thorough:
            self._gathers = gathers(self._trainer.strategy.model)
            observer.observe(self._look)

    @override
    def note_backward(self) -> None:
        self._note_growing(self._marks[-1])
        # The optimizer's part is looked at anew: what it holds then is not what backward held.
        self._most = 0
        self._note_staying()  # of each step: its gradients are there until the next one's backward

    @override
    def note_evaluation(self) -> None:
        self._evaluation_mark = self._log.mark()

    @override
    def note_end(self) -> None:
        self._note_staying()
        self._end_mark = self._log.mark()
        # Where nothing is trained all of it grows, with the capture of a graph in the first step.
        start = self._evaluation_mark if self._is_trained else next(iter(self._marks), None)
        if start is not None:
            self._note_growing(start)
        if self._is_thorough:
            strategy = self._trainer.strategy
            self._host |= host.offloaded_bytes(strategy.model, strategy.optimizers)
            if self._trainer.state.fn == "fit":
                self._checkpoint, self._host[host.SAVED] = host.checkpoint_sizes(self._trainer)
        super().note_end()

    def _look(self, kind: str, *event: Any) -> None:
        """Note who holds what when the card is given something to do and is fuller than ever.

        Gathered weights and buckets come and go within a step, and nobody tells of it. What they
        come from, ZeRO-3 has in reach just behind a collective, and keeps it for longer.
        """
        is_behind, self._is_behind_collective = self._is_behind_collective, kind == "collective"
        used = vendor.memory_stats()["InUse"]
        # In shards each layer has about the same peak, with other gathered weights and gradients.
        is_as_full = self._gathers and self._is_trained and _GROWTH * used > self._most
        if (is_behind and self._gathers) or is_as_full or used > _GROWTH * self._most:
            self._most = max(used, self._most)
            self._note_holders()

    @property
    def _is_trained(self) -> bool:
        return bool(self._trainer.state.fn == "fit")

    def _note_growing(self, start: int) -> None:
        self._growing_bytes = max(self._growing_bytes, self._log.peak(start).num_bytes)

    def _note_staying(self) -> None:
        found = self._note_holders()
        held = sum(each.untyped_storage().nbytes() for name in STAYING for each in found[name])
        self._held_bytes = max(self._held_bytes, held)

    def _note_holders(self) -> dict[str, list[Tensor]]:
        """Note which allocations are whose."""
        strategy = self._trainer.strategy
        found = holders(strategy.model, strategy.optimizers)
        for name, tensors in found.items():
            numbers = {self._log.number_of(each) for each in tensors}
            self._numbers.setdefault(name, set()).update(numbers)
        return found

    def found(self) -> Rehearsed:
        """What was measured, when the run has ended.

        Raises:
            ValueError: It had too few batches.
        """
        self._need(NUM_STEPS)
        peak = self._log.peak(self._marks[-1], self._end_mark)
        sizes = dict.fromkeys((*self._numbers, REST), 0)
        for number, num_bytes in peak.live.items():
            holder = next((name for name in PRECEDENCE if number in self._numbers[name]), REST)
            sizes[holder] += num_bytes
        return Rehearsed(
            batch_size=self._batch_size,
            peak_bytes=peak.num_bytes,
            setup_bytes=self._log.peak(0, self._marks[-1]).num_bytes,
            growing_bytes=self._growing_bytes,
            held_bytes=self._held_bytes,
            categories=sizes,
            host=self._host,
            checkpoint=self._checkpoint,
        )


class _Told:
    """The hooks of a callback."""

    watch: Watch

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.watch.note_making()

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
