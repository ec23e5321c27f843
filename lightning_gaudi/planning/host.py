"""What a run takes beside its card: memory of the host, and room for checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lightning_gaudi._core.rehearsals import Weight, weighing
from lightning_gaudi.reliability.holders import STAYING, holders, num_fsdp_parts

MADE = "weights, as they are made"
SAVED = "a checkpoint, as it is saved"


def made_bytes(model: Any) -> int:
    """What a model's weights take of the host's memory."""
    return sum(each.untyped_storage().nbytes() for each in holders(model, [], "cpu")["weights"])


def offloaded_bytes(model: Any, optimizers: Any) -> dict[str, int]:
    """What training holds on the host, by category, beside buffers of its own."""
    found = holders(model, optimizers, "cpu")
    sizes = {name: sum(each.untyped_storage().nbytes() for each in found[name]) for name in STAYING}
    return {f"{name}, offloaded": size for name, size in sizes.items()}


def checkpoint_sizes(trainer: Any) -> tuple[dict[str, int], int]:
    """How large a checkpoint of a fit would be.

    Returns:
        Bytes of all its files, with the optimizer and without; and what of it this rank writes.
    """
    strategy = trainer.strategy
    if (num_parts := num_fsdp_parts(strategy.model)) > 1:
        # To name what is in a state, FSDP asks the other ranks, which are not there: by its parts.
        found = [holders(strategy.model, strategy.optimizers, each) for each in ("hpu", "cpu")]
        sizes = {
            name: sum(each.nbytes for one in found for each in one[name]) * num_parts
            for name in STAYING
        }
        full = Weight(whole=sizes["weights"] + sizes["optimizer state"])
        full.of_rank = full.whole // (num_parts if strategy.saves_shards else 1)
        weights = Weight(whole=sizes["weights"])
    else:
        full, weights = _weigh(trainer, weights_only=False), _weigh(trainer, weights_only=True)
    return {"with the optimizer": full.whole, "weights alone": weights.whole}, full.of_rank


def _weigh(trainer: Any, *, weights_only: bool) -> Weight:
    with tempfile.TemporaryDirectory(prefix="lightning-gaudi-plan-") as folder, weighing() as found:
        trainer.save_checkpoint(Path(folder, "checkpoint"), weights_only=weights_only)
    return found
