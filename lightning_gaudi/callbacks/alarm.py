"""An alarm for training steps that still compile graphs after the warm-up."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_gaudi._core import vendor
from lightning_gaudi._core.batch_shapes import Shapes, shapes_of
from lightning_gaudi._core.recompilations import Recompilations

from ._steps import is_log_step

__all__ = ["CompilationAlarm", "LateCompilationError"]

_MAX_WARNINGS = 8
_MAX_CAUSES = 3


class LateCompilationError(RuntimeError):
    """A training step has compiled graphs after the warm-up."""


class CompilationAlarm(Callback):
    """Reports which shape made a training step compile after the warm-up, once for each cause.

    A step that compiles takes seconds or minutes on a card. The usual cause is a batch of a new
    shape, which is named beside the usual shape. A device that tells which input of a graph had
    another shape, as a simulated one does, is quoted. Each rank reports its own causes, at most 8.

    Validation, saving and logging have graphs of their own, which do not count. Reading the losses
    has one, too, so the first log step may compile whenever it comes. A card may compile while the
    host is several steps ahead, so the step with a new shape since the last log step is blamed.

    Args:
        num_warmup_steps: optimizer steps of a fit that may compile.
        on_compilation: "warn", or "error" to end the fit at the first.

    Attributes:
        num_late: graphs that steps compiled after the warm-up; None if the device does not count.

    Raises:
        ValueError: The number is negative, or the word is another.
        LateCompilationError: A step has compiled, and `on_compilation="error"`.
    """

    def __init__(
        self, num_warmup_steps: int = 10, on_compilation: Literal["warn", "error"] = "warn"
    ) -> None:
        if num_warmup_steps < 0:
            raise ValueError(f"num_warmup_steps must be 0 or more, but is {num_warmup_steps}.")
        if on_compilation not in ("warn", "error"):
            raise ValueError(f'on_compilation={on_compilation!r} is neither "warn" nor "error".')
        self.num_warmup_steps = num_warmup_steps
        self.on_compilation = on_compilation
        self.num_late: int | None = None
        self._recompilations: Recompilations | None = None
        self._shapes: dict[Shapes, int] = {}
        self._told: set[Shapes | tuple[str, ...]] = set()
        self._num_before: int | None = None
        self._last: tuple[int, Shapes] = (0, ())
        self._suspect: tuple[int, Shapes] | None = None
        self._new_shapes: set[Shapes] = set()
        self._first_step = 0
        self._has_logged = self._is_interrupted = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resets all counts, since a resumed run compiles again."""
        is_hpu = trainer.strategy.root_device.type == "hpu"
        self.num_late = 0 if is_hpu and _num_compiled() is not None else None
        self._recompilations = Recompilations() if is_hpu else None
        self._shapes, self._told = {}, set()
        self._new_shapes, self._suspect = set(), None
        self._first_step, self._has_logged = trainer.global_step, False
        self._is_interrupted = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Charges the last step with compilations since then, unless something came between."""
        if self._is_interrupted:
            self._skip()
        else:
            self._check(trainer)
        self._last = (trainer.global_step + 1, shapes_of(batch))
        step, shapes = self._last
        if shapes not in self._shapes and self._is_late(step):
            self._suspect = self._last
            self._new_shapes.add(shapes)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports compilations of this step."""
        step, shapes = self._last
        is_log = is_log_step(trainer, step)
        if is_log and not self._has_logged:
            self._skip()
        else:
            self._check(trainer)
        self._shapes[shapes] = self._shapes.get(shapes, 0) + 1
        # A log step reads metrics, and so the device has caught up.
        if is_log:
            self._has_logged = self._is_interrupted = True
            self._suspect = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Charges no step with what validation compiles."""
        self._is_interrupted = True

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Charges no step with what saving compiles."""
        self._is_interrupted = True

    def _is_late(self, step: int) -> bool:
        return step > self._first_step + self.num_warmup_steps

    def _skip(self) -> None:
        """Leaves out all compilations so far."""
        self._is_interrupted = False
        if self.num_late is None:
            return
        num_compiled = _num_compiled()
        if num_compiled != self._num_before and self._recompilations is not None:
            self._recompilations.skip()
        self._num_before = num_compiled

    def _check(self, trainer: Trainer) -> None:
        """Reports compilations since the last check."""
        if self.num_late is None or self._num_before is None:
            return
        num_new = (_num_compiled() or 0) - self._num_before
        if num_new and not self._is_late(self._last[0]):
            self._skip()
        elif num_new:
            self._num_before += num_new
            self.num_late += num_new
            step, shapes = self._suspect or self._last
            where = f"Rank {trainer.global_rank}: step" if trainer.world_size > 1 else "Step"
            self._alarm(f"{where} {step}", num_new, shapes)

    def _alarm(self, where: str, num_new: int, shapes: Shapes) -> None:
        causes = self._recompilations.new() if self._recompilations is not None else []
        is_new = shapes in self._new_shapes
        cause = shapes if is_new else tuple(sorted(set(causes)))
        if cause in self._told:
            return
        self._told.add(cause)
        told = f" The device says: {'; '.join(causes[:_MAX_CAUSES])}." if causes else ""
        why = self._new_shape(shapes) if is_new and shapes else _SAME_SHAPES
        if not shapes:
            why = (
                "Its batch is no mapping or sequence of tensors, so that its shapes are not known."
            )
        graphs = "1 graph" if num_new == 1 else f"{num_new} graphs"
        text = (
            f"{where} compiled {graphs}, after a warm-up of {self.num_warmup_steps} steps. "
            f"{why}{told}"
        )
        if self.on_compilation == "error":
            raise LateCompilationError(
                f'{text} Or pass CompilationAlarm(on_compilation="warn") to go on all the same.'
            )
        if len(self._told) <= _MAX_WARNINGS:
            last = " More are not told." if len(self._told) == _MAX_WARNINGS else ""
            warnings.warn(text + last, stacklevel=2)

    def _new_shape(self, shapes: Shapes) -> str:
        """Describes what is new in a batch beside the usual shapes, with advice."""
        if not self._shapes:
            return f"Its batch has {_show(shapes)}."
        # The new shape may be counted by now. Of equal counts, `max` returns the first.
        usual = dict(max(self._shapes.items(), key=lambda each: each[1])[0])
        changed = [each for each in shapes if usual.get(each[0]) != each[1]]
        is_part = any(_is_part(shape, usual.get(name)) for name, shape in changed)
        names = [name for name, _ in changed]
        before = _show(tuple((name, usual[name]) for name in names if name in usual))
        was = f"where {before} is usual" if before else "which the usual batch does not have"
        advice = (
            "A last batch that is not full has its own: pass DataLoader(drop_last=True)."
            if is_part
            else "Pad batches to a few lengths (lightning_gaudi.data.BucketDataLoader), or to one."
        )
        return f"Its batch has {_show(tuple(changed))}, {was}. {advice}"


_SAME_SHAPES = (
    "Batches with its shapes came before, so something within the step varies: a tensor whose size "
    "depends on data, a Python number in the graph, or another branch. "
    "Give it one shape (torch.where, padding), or keep the number in a tensor on the device."
)


def _is_part(shape: tuple[int, ...], usual: tuple[int, ...] | None) -> bool:
    """Returns whether a tensor has fewer rows than usual, and the usual shape otherwise."""
    return bool(shape and usual and shape[1:] == usual[1:] and shape[0] < usual[0])


def _show(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes) or "no tensor"


def _num_compiled() -> int | None:
    metric = vendor.metric("graph_compilation")
    return None if metric is None else int(metric["TotalNumber"])
