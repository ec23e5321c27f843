"""Adds to an error of the user's program what it means for the run, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from lightning_gaudi._core import vendor
from lightning_gaudi._core.memory import report
from lightning_gaudi._core.processes.rank_monitor import say

_HOOKS = (
    "prepare_data",
    "setup",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
)

_CUDA = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|CUDA is hidden in this process"
)
"""The messages of torch about a missing device, and of the simulator about one that it hides.

Source: torch 2.13, `torch/cuda/__init__.py` and `c10/cuda/CUDAFunctions.cpp`.
"""


def tell(error: BaseException, module: Any, optimizers: Sequence[Any], *, rank: int) -> None:
    """Explains an error that ends a run, and lists what fills the card if the card is full.

    Args:
        error: The error, which gets a note where Python has notes (since 3.11).
        module: The model that the card holds.
        optimizers: The optimizers of that model.
        rank: The rank of this process.
    """
    if report.is_out_of_memory(error):
        say(f"[rank: {rank}] out of memory: {report.report(module, optimizers)}")
    said = explain(error, holds_card=vendor.is_initialized())
    if said is not None and hasattr(error, "add_note"):
        error.add_note(said)


def explain(error: BaseException, *, holds_card: bool) -> str | None:
    """Returns what an error means for the run; None if its own message is enough.

    Args:
        error: The error that ended the run.
        holds_card: Whether this process has acquired its card.
    """
    if isinstance(error, FileNotFoundError):
        return _of_missing_data(error, holds_card)
    if isinstance(error, (AssertionError, RuntimeError)) and _CUDA.search(str(error)):
        return (
            "The program asks for a CUDA device, and this run is on 'hpu'. Use the device that the "
            "run has: self.device of the LightningModule, or that of a tensor of the batch, in "
            "place of .cuda() and 'cuda'."
        )
    return None


def _of_missing_data(error: FileNotFoundError, holds_card: bool) -> str | None:
    """Returns a sentence that names the hook which did not find its data; None if none is known."""
    hook = _hook(error.__traceback__)
    if hook is None:
        return None
    path = f"{error.filename}" if error.filename else "what it looked for"
    holds = "The card is released as this process ends."
    card = holds if holds_card else "The Trainer has acquired no card yet."
    return (
        f"{hook} did not find {path}. Check the path, or have prepare_data download it: Lightning "
        f"calls that once on each node, before all else. {card}"
    )


def _hook(traceback: TracebackType | None) -> str | None:
    """Returns the user's hook that was running, with its class."""
    while traceback is not None:
        frame = traceback.tb_frame
        owner, name = frame.f_locals.get("self"), frame.f_code.co_name
        is_lightnings = frame.f_globals.get("__name__", "").startswith(
            ("lightning", "pytorch_lightning")
        )
        if name in _HOOKS and owner is not None and not is_lightnings:
            return f"{type(owner).__name__}.{name}"
        traceback = traceback.tb_next
    return None
