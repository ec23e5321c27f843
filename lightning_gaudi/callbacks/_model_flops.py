"""The floating-point operations of a model for a batch, given or counted once for each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from lightning.pytorch import LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._core.batch_shapes import Shapes, shapes_of
from lightning_gaudi._core.flops import FlopCounter

__all__ = ["FlopsFormula", "ModelFlops", "num_replicas"]

FlopsFormula: TypeAlias = Callable[[Any], int]
"""A function from a batch to the operations of forward and backward."""

_MAX_SHAPES = 64


class ModelFlops:
    """The operations of a batch, as `TokenThroughput(flops_per_batch=...)` describes them.

    Raises:
        ValueError: It is none of these.
    """

    def __init__(self, given: int | FlopsFormula | Literal["measured"] | None) -> None:
        is_number = isinstance(given, (int, float)) and given > 0
        if not (given is None or given == "measured" or callable(given) or is_number):
            raise ValueError(
                f"flops_per_batch={given!r} is no number above 0, no function of a batch and not "
                '"measured".'
            )
        self._given = given
        self._module: Any = None
        self._measured: dict[Shapes, int] = {}
        self._counter: FlopCounter | None = None
        self._shapes: Shapes = ()

    @property
    def _measures(self) -> bool:
        return self._given == "measured"

    def start(self, trainer: Trainer, module: LightningModule) -> bool:
        """Begins a fit, and returns whether the operations of a batch will be known.

        Raises:
            ValueError: They cannot be measured here.
        """
        self._module, self._measured = module, {}
        if self._measures and num_replicas(trainer) != trainer.world_size:
            raise ValueError(
                "flops_per_batch='measured' counts what one rank computes, and here several ranks "
                f"({trainer.world_size} in {num_replicas(trainer)} replicas) compute parts of a "
                "batch. Give the number for a whole batch: flops_per_batch=<number>."
            )
        return self._given is not None or hasattr(module, "flops_per_batch")

    def start_step(self, batch: Any) -> None:
        """Counts this step if it is the first of its shape."""
        if not self._measures or len(self._measured) > _MAX_SHAPES:
            return
        self._shapes = shapes_of(batch)
        if self._shapes in self._measured:
            return
        if len(self._measured) == _MAX_SHAPES:
            rank_zero_warn(
                f"flops_per_batch='measured' has met {_MAX_SHAPES} shapes of batches, and counts "
                "no more: no MFU is reported. Pad to fewer, or give a function of the batch."
            )
            self._measured[self._shapes] = 0
            return
        self._counter = FlopCounter()
        self._counter.start()

    def end_step(self, *, is_whole: bool = True) -> bool:
        """Ends a step, and returns whether it was counted, which makes a step slower."""
        counter, self._counter = self._counter, None
        if counter is None:
            return False
        counter.stop()
        if is_whole:
            self._measured[self._shapes] = counter.num_flops
        return True

    def of(self, batch: Any) -> int | None:
        """Returns the operations of a batch; None if they are not known any more."""
        if self._measures:
            return None if len(self._measured) > _MAX_SHAPES else self._measured[self._shapes]
        if callable(self._given):
            return int(self._given(batch))
        return int(self._module.flops_per_batch if self._given is None else self._given)


def num_replicas(trainer: Trainer) -> int:
    """Returns how many different batches all ranks together compute on in a step."""
    strategy: Any = trainer.strategy
    sampling = getattr(strategy, "distributed_sampler_kwargs", None) or {}
    return int(sampling.get("num_replicas", trainer.world_size))
