"""Refuses what cannot be part of a captured graph.

Source: the vendor's "Run Inference Using HPU Graphs" (no operators on the CPU, no shapes and no
flow that depend on values, no updates of views in place, collectives only if they are lazy) and
"HPU Graphs for Training"; hpu_ops/cpu_fallback.cpp, ProcessGroupHCCL.cpp (1.19).
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import torch

from ..._binding import C

COLLECTIVES = ("c10d", "_c10d_functional")
_WAITS = frozenset(
    {"aten::equal", "aten::is_nonzero", "aten::_local_scalar_dense", "aten::_grouped_mm"}
)
"""Operators that wait, beside those that torch tags.

`_grouped_mm` waits for the sizes of its groups, by which it is composed.
"""
_INDEXING = frozenset({"aten::index", "aten::_unsafe_index"})
_WRITING = frozenset({"aten::index_put_", "aten::_index_put_impl_", "aten::index_put"})

_FOR_TRANSFORMERS = (
    " Models of this release of transformers read on the host whether a mask of padding hides "
    "anything, but not with attn_implementation='gaudi_fused_sdpa'."
)


class CaptureError(RuntimeError):
    """An operation cannot be part of a captured graph."""


@dataclass(frozen=True)
class Traits:
    """What matters about an operator while it is captured."""

    name: str
    """The name, as "aten::add_"."""
    written: tuple[tuple[int, str], ...]
    """Position and name of each argument that it writes."""
    is_view: bool
    """Whether its result lies in the memory of an argument."""
    is_collective: bool
    """Whether ranks take part together."""
    draws: bool
    """Whether it draws random numbers, or has another effect that no result shows."""
    waits: bool
    """Whether the host needs its result, or the shape of its result."""
    renames: bool
    """Whether it changes the layout of a tensor and nothing in its memory."""


@functools.cache
def traits_of(operator: Any) -> Traits:
    """Reads an operator's traits from its schema and tags."""
    schema = operator._schema
    tags = operator.tags
    dynamic = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    arguments = list(enumerate(schema.arguments))
    # torch tags these because of masks, for which `_check_masks` looks itself.
    is_indexing = schema.name in _INDEXING
    return Traits(
        name=schema.name,
        written=tuple((i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write),
        is_view=any(r.alias_info and not r.alias_info.is_write for r in schema.returns),
        is_collective=operator.namespace in COLLECTIVES,
        draws=torch.Tag.nondeterministic_seeded in tags,
        waits=schema.name in _WAITS or (bool(dynamic & set(tags)) and not is_indexing),
        renames=torch.Tag.inplace_view in tags and not schema.name.startswith("aten::resize"),
    )


def check(traits: Traits, args: tuple[Any, ...], has_card: bool) -> None:
    """Checks that a card could capture the call.

    Args:
        traits: The operator's traits.
        args: Its positional arguments.
        has_card: Whether a tensor of the card is among its arguments.

    Raises:
        CaptureError: It could not capture it.
    """
    if traits.waits and has_card:
        raise CaptureError(
            f"{traits.name} is not supported during HPU graph capturing: the host needs its result,"
            " or the shape of it, and a replay runs no Python that could use it. Compute on the "
            "device with static shapes (torch.where, masks), or read the value outside the graph."
            f"{_advice()}"
        )
    if traits.name == "aten::set_" and has_card:
        raise CaptureError(
            "aten::set_ is not supported during HPU graph capturing: a replay would not know of "
            "the other memory. Copy into the tensor instead: tensor.copy_(other)."
        )
    if traits.is_collective:
        _check_collective(traits)
    _check_masks(traits, args)
    _check_checkpointing()


def _advice() -> str:
    """Returns advice for releases of transformers that never ask whether they are captured."""
    utilities = sys.modules.get("transformers.utils.import_utils")
    is_older = utilities is not None and not hasattr(utilities, "is_cuda_stream_capturing")
    return _FOR_TRANSFORMERS if is_older else ""


def check_to_host(traits: Traits) -> None:
    """Refuses a copy from the card to the host.

    Raises:
        CaptureError: Always.
    """
    raise CaptureError(
        f"{traits.name} to the CPU is not supported during HPU graph capturing: the host would "
        "have the values of the capture for ever. Copy results of the graph after it has run."
    )


def check_write(traits: Traits, tensor: torch.Tensor, is_view: bool) -> None:
    """Checks that a write in place does not go to a part of a tensor.

    Raises:
        CaptureError: It does.
    """
    # A view of the whole tensor may be written: only parts are refused.
    num_bytes = tensor.untyped_storage().nbytes()
    if is_view and not traits.renames and tensor.numel() * tensor.itemsize < num_bytes:
        raise CaptureError(
            f"{traits.name} updates a view in place, {tuple(tensor.shape)} of a tensor of "
            f"{num_bytes // tensor.itemsize} elements, which is not supported during HPU graph "
            "capturing. Write to the whole tensor: index_copy_, scatter_, torch.where, torch.cat."
        )


def _check_collective(traits: Traits) -> None:
    if traits.name == "c10d::barrier":
        raise CaptureError(
            "c10d::barrier is not supported during HPU graph capturing: the host waits. Call it "
            "outside the graph."
        )
    if not C.has_lazy_collectives():
        raise CaptureError(
            f"{traits.name} is not supported during HPU graph capturing, because collectives end "
            "the graph. Set PT_HPU_ENABLE_LAZY_COLLECTIVES=true before the process starts."
        )


def _check_masks(traits: Traits, args: tuple[Any, ...]) -> None:
    if traits.name not in _INDEXING | _WRITING:
        return
    masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if masks and (traits.name in _INDEXING or args[2].numel() > 1):
        raise CaptureError(
            f"{traits.name} with a mask is not supported during HPU graph capturing: the number of"
            " elements depends on values. Use torch.where or masked_fill."
        )


def _check_checkpointing() -> None:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and "checkpoint" in getattr(hooks[0], "__module__", ""):
        raise CaptureError(
            "Gradient checkpointing is not supported during HPU graph capturing: the graph keeps "
            "what its backward needs. Switch it off, or train without HPU graphs."
        )
