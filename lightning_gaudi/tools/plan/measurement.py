"""Measures the steps of a rehearsal, and the evaluation behind them.

Their memory is that of the third step: the first makes the optimizer's states, and the second is
the first that is compiled with them. What a step computes and sends is counted in another run,
which sees each operator as it is called, and so keeps torch from compiling.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi._core.memory.owners import (
    PASSING,
    PRECEDENCE,
    STAYING,
    gathers,
    holders,
)
from lightning_gaudi._core.memory.report import REST
from lightning_gaudi.simulator import observer, statistics
from lightning_gaudi.simulator.memory import MemoryLog
from lightning_gaudi.simulator.rules import rows_kernels
from lightning_gaudi.simulator.rules.report import place_of_user, short_name
from lightning_gaudi.simulator.rules.table import called_kernels
from lightning_gaudi.tools.plan import host
from lightning_gaudi.tools.plan.batches import NUM_STEPS
from lightning_gaudi.tools.plan.forks import note_guessed
from lightning_gaudi.tools.plan.model_changes import can_checkpoint
from lightning_gaudi.tools.plan.request import Counted, Rehearsed
from lightning_gaudi.tools.plan.run import Run
from lightning_gaudi.tools.plan.work import Part, Work

BESIDE = "beside tensors"
"""The memory that the card's allocator takes itself; see `simulator.memory.Peak.beside_tensors`."""

_GROWTH = 1.01
"""By which factor more than ever before must be in use to be worth another look.

Each look takes milliseconds. What is new in between is found after backward, at the end, or by the
next collective."""


_SAME = 1e-4
"""The memory in use counts as unchanged below this share, if nothing was gathered."""

_MUCH_BYTES = 2**20
"""The size of a result below which a guess does not matter, since it cannot fill a card."""


class Watch:
    """Is told how far a run on a dry card is.

    Args:
        run: The run, which has not begun yet.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_begun = 0
        self._step = -1
        self._num_before: int | None = None
        self._num_others = 0

    def follow(self, run: Run) -> None:
        """Follows another run from now on, which has taken the place of the first."""
        self._run = run

    def note_made(self, model: Any) -> None:
        """Notes that the strategy is about to set up a module, whose weights are made."""

    def note_loader(self, num_before: int, num_others: int) -> None:
        """Notes that a loader is made ready.

        Args:
            num_before: The number of its batches before those that are watched.
            num_others: The same with the batches behind them.
        """
        if self._num_before is None:  # the first of several loaders counts
            self._num_before, self._num_others = num_before, num_others

    def note_evaluated(self, number: int, batch: Any) -> None:
        """Notes that a batch comes next where nothing is trained, and its number in its loader."""
        if number >= (self._num_before or 0):
            self.note_batch(number, batch)

    def note_predicted(self, number: int) -> None:
        """Notes that a batch of a prediction is done, none of whose results need be written."""
        if number == self._num_others + NUM_STEPS - 1:
            self.note_end()

    def note_batch(self, step: int, batch: Any) -> None:
        """Notes that a batch comes next; several optimizers may have stepped since, or none."""
        if step != self._step and self._num_begun < NUM_STEPS:
            self._step = step
            self._num_begun += 1
            self.begin(self._num_begun - 1, batch)

    def begin(self, step: int, batch: Any) -> None:
        """Notes that a step's first batch comes next."""

    def note_backward(self) -> None:
        """Notes that the optimizer is about to step."""

    def note_evaluation(self) -> None:
        """Notes that the evaluation behind the steps is about to begin."""

    def note_end(self) -> None:
        """Notes that all batches are done; what the program does next does not matter."""
        self._run.end()

    def found(self) -> Counted | Rehearsed:
        """Returns what was measured, once the run has ended.

        Raises:
            ValueError: The run had too few batches.
        """
        raise NotImplementedError

    def _need(self, num_steps: int) -> None:
        if self._num_begun < num_steps:
            raise ValueError(
                f"The program took {self._num_begun} steps, and {num_steps} are needed to plan "
                "it. Give its loader more batches."
            )


class Counts(Watch):
    """Counts what the first training step computes and sends, or the second where nothing trains.

    The first batch of a prediction may be run several times, to warm up. Of a step of many micro
    batches only a few may be run. Those left out count as the third one does, which adds to
    gradients as the second has done, and is not the last.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._micro_batches: list[Part] = []

    @override
    def note_batch(self, step: int, batch: Any) -> None:
        super().note_batch(step, batch)
        if self._num_begun == 1:
            self._micro_batches.append(self._work.so_far())

    @override
    def begin(self, step: int, batch: Any) -> None:
        if step == 0:
            statistics.reset_statistics()
            # With fullgraph=True, torch would raise rather than let operators be seen.
            torch.compiler.set_stance("force_eager")
            self._work = Work(holders(self._run.model, [])["weights"])
            self._work.start()
            self._warm_up = 0 if self._run.is_trained else 1
            self._before = self._work.so_far()
        elif step == self._warm_up:
            self._before = self._work.so_far()
        else:
            self._run.end()

    @override
    def found(self) -> Counted:
        self._need(1)
        self._work.stop()
        found = self._work.so_far().since(self._before)
        begun = self._micro_batches
        if (left := self._run.num_micro_batches - len(begun)) > 0 and len(begun) > 3:
            found = found.plus(begun[3].since(begun[2]), left)
        return Counted(
            flops=found.flops if self._work.is_complete else 0,
            moved_bytes=found.moved_bytes,
            collective_bytes=dict(found.sent),
            num_micro_batches=self._run.num_micro_batches,
            weight_bytes=found.weight_bytes,
            num_replicas=self._run.num_replicas,
            flops_of=dict(found.flops_of) if self._work.is_complete else {},
            num_operators=found.num_operators,
            fused_bytes=found.fused_bytes,
            product_bytes=found.product_bytes,
            num_attentions=found.num_attentions,
            num_cross_attentions=found.num_cross_attentions,
            num_passes=found.num_passes,
            is_trained=self._run.is_trained,
        )


class MemoryWatch(Watch):
    """Measures the memory that the steps take of the card.

    Args:
        run: The run, which has not begun yet.
        is_thorough: Whether to find the owners of the memory, and what is taken beside the card.
            The amounts alone are faster.
    """

    def __init__(self, run: Run, *, is_thorough: bool = False) -> None:
        super().__init__(run)
        self._is_thorough = is_thorough
        self._can_checkpoint = False
        self._host: dict[str, int] = {}
        self._checkpoint: dict[str, int] = {}
        self._end_mark: int | None = None
        self._log = MemoryLog()
        self._marks: list[int] = []
        self._batch_size = 0
        self._num_cards = 1
        self._growing_bytes = 0
        self._evaluation_mark: int | None = None
        self._numbers: dict[str, set[int]] = {}
        self._held_bytes = 0
        self._most = 0
        self._gathers = False
        self._is_behind_collective = False
        self._is_looking = False
        self._looked_at, self._has_changed = 0, True
        self._modules: list[Any] | None = None
        self._guessed: dict[str, str] = {}
        if is_thorough:
            observer.observe(self._note_event)

    @override
    def note_made(self, model: Any) -> None:
        if self._is_thorough:
            self._host[host.MADE] = self._host.get(host.MADE, 0) + host.made_bytes(model)
            self._can_checkpoint |= can_checkpoint(model)

    @override
    def begin(self, step: int, batch: Any) -> None:
        self._batch_size = self._batch_size or self._run.size_of(batch)
        self._num_cards = self._run.num_cards
        self._marks.append(self._log.mark())
        if step == NUM_STEPS - 1 and self._is_thorough:
            self._gathers = gathers(self._run.model)
            self._modules = [*self._run.model.modules()]
            self._is_looking = True

    @override
    def note_backward(self) -> None:
        self._note_growing(self._marks[-1])
        # The optimizer holds other memory than backward did, so the search for a peak starts anew.
        self._most = 0
        self._note_staying()  # in each step, since gradients stay until the next step's backward

    @override
    def note_evaluation(self) -> None:
        self._evaluation_mark = self._log.mark()

    @override
    def note_end(self) -> None:
        self._note_staying()
        self._end_mark = self._log.mark()
        # Where nothing is trained, all memory counts as growing with the batch, with that of the
        # capture of a graph in the first step.
        start = self._evaluation_mark if self._run.is_trained else next(iter(self._marks), None)
        if start is not None:
            self._note_growing(start)
        if self._is_thorough:
            self._host |= host.offloaded_bytes(self._run.model, self._run.optimizers)
            if self._run.is_trained:
                self._checkpoint, self._host[host.SAVED] = host.checkpoint_sizes(self._run)
        super().note_end()

    def _note_event(self, kind: str, what: str, amount: int, *event: Any) -> None:
        if kind == "guessed_size":
            if (place := place_of_user()) is not None:
                line = f"{short_name(place[0])}:{place[1]}"
                note_guessed(line, what)
                if amount > _MUCH_BYTES:
                    self._guessed.setdefault(line, what)
        elif self._is_looking and kind != "compilation":  # torch's compiler takes only fake tensors
            self._look(kind)

    def _look(self, kind: str) -> None:
        """Notes who holds which memory if the card is fuller than ever when work is launched.

        Gathered weights and buckets come and go within a step without any event. ZeRO-3 still
        refers to them right after a collective, so that is when to look.
        """
        is_behind, self._is_behind_collective = self._is_behind_collective, kind == "collective"
        used = vendor.memory_stats()["InUse"]
        self._has_changed |= is_behind or abs(used - self._looked_at) > _SAME * used
        # With shards, each layer has about the same peak with other gathered weights and gradients.
        is_as_full = self._gathers and self._run.is_trained and _GROWTH * used > self._most
        if (is_as_full and self._has_changed) or used > _GROWTH * self._most:
            self._most = max(used, self._most)
            self._looked_at, self._has_changed = used, False
            self._note_holders()
        elif is_behind and self._gathers:
            self._note_holders(PASSING)

    def _note_growing(self, start: int) -> None:
        self._growing_bytes = max(self._growing_bytes, self._log.most(start))

    def _note_staying(self) -> None:
        found = self._note_holders()
        held = sum(each.untyped_storage().nbytes() for name in STAYING for each in found[name])
        self._held_bytes = max(self._held_bytes, held)

    def _note_holders(self, only: Collection[str] = PRECEDENCE) -> dict[str, list[Tensor]]:
        """Notes the owners of allocations."""
        run, modules = self._run, self._modules
        found = holders(run.model, run.optimizers, modules=modules, only=only)
        for name, tensors in found.items():
            numbers = {self._log.number_of(each) for each in tensors}
            self._numbers.setdefault(name, set()).update(numbers)
        return found

    @override
    def found(self) -> Rehearsed:
        self._need(NUM_STEPS)
        peak = self._log.peak(self._marks[-1], self._end_mark)
        sizes = dict.fromkeys((*self._numbers, REST), 0)
        for number, num_bytes in peak.live.items():
            holder = next((name for name in PRECEDENCE if number in self._numbers[name]), REST)
            sizes[holder] += num_bytes
        sizes[BESIDE] = peak.beside_tensors
        return Rehearsed(
            batch_size=self._batch_size,
            num_cards=self._num_cards,
            has_loader=self._run.has_loader,
            has_strategy=self._run.has_strategy,
            peak_bytes=peak.num_bytes,
            setup_bytes=self._log.peak(0, self._marks[-1]).num_bytes,
            growing_bytes=self._growing_bytes,
            held_bytes=self._held_bytes,
            categories=sizes,
            host=self._host,
            checkpoint=self._checkpoint,
            can_checkpoint=self._can_checkpoint,
            guessed=self._guessed,
            has_fused_attention=not called_kernels().isdisjoint(rows_kernels.ATTENTION),
            is_lazy=vendor.is_lazy(),
        )
