"""Measures what a run takes beside its card: memory of the host, and room for checkpoints."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_gaudi._core import hooks
from lightning_gaudi._core.memory.owners import STAYING, holders, num_fsdp_parts
from lightning_gaudi.tools.plan.run import Run


@dataclass
class Weight:
    """The size of a checkpoint, in bytes."""

    whole: int = 0
    """The size of all files of all ranks."""
    of_rank: int = 0
    """The size of what this rank writes."""


class _Weighed(BaseException):
    """Ends a save once its size is known, so that nothing is written."""


MADE = "weights, as they are made"
SAVED = "a checkpoint, as it is saved"


def made_bytes(model: Any) -> int:
    """Returns the bytes that a model's weights take of the host's memory."""
    return sum(each.untyped_storage().nbytes() for each in holders(model, [], "cpu")["weights"])


def offloaded_bytes(model: Any, optimizers: Any) -> dict[str, int]:
    """Returns the bytes that training holds on the host, by category, without its own buffers."""
    found = holders(model, optimizers, "cpu")
    sizes = {name: sum(each.untyped_storage().nbytes() for each in found[name]) for name in STAYING}
    return {f"{name}, offloaded": size for name, size in sizes.items()}


def checkpoint_sizes(run: Run) -> tuple[dict[str, int], int]:
    """Returns the sizes of a checkpoint of what is trained.

    Returns:
        The bytes of all its files, with the optimizer and without, as far as it can be saved; and
        the bytes that this rank writes.
    """
    if (num_parts := num_fsdp_parts(run.model)) > 1:
        # FSDP would ask the other ranks for the names in a state, and they do not exist. So the
        # size is computed from its parts.
        found = [holders(run.model, run.optimizers, each) for each in ("hpu", "cpu")]
        sizes = {
            name: sum(each.nbytes for one in found for each in one[name]) * num_parts
            for name in STAYING
        }
        full = Weight(whole=sizes["weights"] + sizes["optimizer state"])
        full.of_rank = full.whole // (num_parts if run.saves_shards else 1)
        weights = sizes["weights"]
    else:
        full = _weigh(run, weights_only=False)
        weights = _weigh(run, weights_only=True).whole
    found_sizes = {"with the optimizer": full.whole, "weights alone": weights}
    return {name: size for name, size in found_sizes.items() if size}, full.of_rank


def _weigh(run: Run, *, weights_only: bool) -> Weight:
    if not run.can_save(weights_only=weights_only):
        return Weight()
    found: list[Weight] = []

    def note(sizes: hooks.Sizes) -> None:
        found.append(Weight(*sizes()))
        raise _Weighed

    with (
        tempfile.TemporaryDirectory(prefix="lightning-gaudi-plan-") as folder,
        hooks.listening_before_write(note),
        contextlib.suppress(_Weighed),
    ):
        run.save(Path(folder, "checkpoint"), weights_only=weights_only)
    return found[0] if found else Weight()
