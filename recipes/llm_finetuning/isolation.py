"""Tests whether a model keeps the documents of a packed row apart.

transformers keeps them apart by the mask that it is given, by positions alone, or not at all,
depending on the model and on how it is called. If it does not, no error is raised, and a model is
trained on documents that see each other. So the model at hand is tried before the training.

Shapes: T tokens of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recipes.common.errors import UserError

_LENGTH = 8
"""Tokens of each of the two documents."""

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes input_ids, sequence_ids and position_ids, [1, T] each, and returns logits [1, T, V]."""


@torch.no_grad()
def check_isolation(compute: Compute, vocab_size: int, device: torch.device, name: str) -> None:
    """Refuses a model in whose packed rows a document depends on another one.

    The logits of the second of two documents must be bit for bit the same whatever the first one
    is, and must equal, but for rounding, those that the document has in a row of its own.

    Args:
        compute: calls the model as training does, but in evaluation mode.
        vocab_size: the size of the model's vocabulary (V).
        device: the model's device.
        name: the model's name, for the message.

    Raises:
        UserError: A document depends on another one.
    """
    generator = torch.Generator().manual_seed(0)
    first, other, second = torch.randint(0, vocab_size, (3, _LENGTH), generator=generator)
    # Eagerly, because compiling a graph would take longer than computing three rows.
    with torch.compiler.set_stance("force_eager"):
        packed = [_compute(compute, each, second, device)[_LENGTH:] for each in (first, other)]
        alone = _compute(compute, second, None, device)[:_LENGTH]
    tolerance, scale = _tolerance(alone.dtype), alone.float().abs().max().clamp(min=1e-6)
    error = (packed[0].float() - alone.float()).abs().max() / scale
    if not torch.equal(*packed) or error > tolerance:
        raise UserError(
            f"{name} does not keep the documents of a packed row apart: the logits of a document "
            f"differ by {float(error):.2g} of the largest one if it follows another document. Set "
            "data.max_sequences_per_pack=1, which packs nothing, or another model.attention."
        )


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 5e-2


def _compute(
    compute: Compute, first: Tensor, second: Tensor | None, device: torch.device
) -> Tensor:
    """Returns the logits of a row of two documents, or of one and padding: [T, V], on the host."""
    tokens = torch.cat([first, torch.zeros_like(first) if second is None else second])[None]
    numbers = torch.tensor([1, 0 if second is None else 2]).repeat_interleave(_LENGTH)[None]
    positions = torch.arange(_LENGTH).repeat(2)[None]
    logits = compute(*(each.to(device) for each in (tokens, numbers, positions)))
    return logits[0].cpu()
