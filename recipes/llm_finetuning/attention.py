"""Attention without a mask of a row's size, and attention over rows whose tokens cards share.

Both are attention functions of transformers by names of their own. transformers makes no mask for
those that it does not know. Where a row holds one document none is needed: that a token sees no
later one is all, and the kernel knows that.

Shapes: B rows, T tokens of a row, H heads, G heads of keys, D of a head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AttentionInterface, PreTrainedModel

from recipes.common.errors import UserError

_KNOWN = ("sdpa", "gaudi_fused_sdpa")
"""What knows without a mask that a token sees no later one."""
_SHARE = 16
"""A mask may have this part of a card."""


def attend_without_mask(model: PreTrainedModel) -> bool:
    """Lets a model attend by causality alone wherever it is given no mask.

    Returns:
        Whether it can; it is left as it is if not.
    """
    kind = model.config._attn_implementation
    if kind not in _KNOWN:
        return False
    return _set(model, f"causal_{kind}", AttentionInterface()[kind])


def attend_over_cards(model: PreTrainedModel, mesh: DeviceMesh, length: int) -> None:
    """Lets a model attend over rows of which each card has some tokens, by DeepSpeed's Ulysses.

    Each card exchanges its tokens of all heads for all tokens of some heads, attends, and changes
    back. The mask is that of whole rows.

    Args:
        model: its attention is sdpa or gaudi_fused_sdpa.
        mesh: of one axis, whose cards share the rows.
        length: of a row (T).

    Raises:
        UserError: for another attention, and heads or tokens that do not divide among the cards.
    """
    config, num_cards = model.config.get_text_config(), mesh.size()
    kind = model.config._attn_implementation
    num_groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    for what, size in (
        ("a row's tokens (data.pack_length)", length),
        ("the model's heads of keys", num_groups),
    ):
        if size % num_cards:
            raise UserError(
                f"model.sequence_parallel=ulysses has {num_cards} cards (tensor_parallel_size of "
                f"trainer.strategy) share {what}, {size}, which it does not divide. Set a number "
                "that does."
            )
    attend = AttentionInterface()[kind] if kind in _KNOWN else None
    if attend is None or not _set(model, f"ulysses_{kind}", _over_cards(attend, mesh)):
        raise UserError(
            "model.sequence_parallel=ulysses needs an attention that a card can compute for some "
            f"heads alone, and that of {type(model).__name__} is {kind}. Set model.attention to "
            f"{' or '.join(_KNOWN)}, or take a model that has it."
        )


def check_mask(num_rows: int, length: int, num_bytes: int, capacity: int) -> None:
    """Refuses a mask that would take much of a card.

    Args:
        num_rows: of a batch (B).
        length: of a row (T).
        num_bytes: of a number of the mask.
        capacity: bytes of a card.

    Raises:
        UserError: naming what fits.
    """
    whole = num_rows * length**2 * num_bytes
    if whole <= capacity // _SHARE:
        return
    raise UserError(
        f"data.batch_size={num_rows} packed row(s) of {length} tokens need an attention mask of "
        f"{whole / 2**30:.1f} GiB, more than a {_SHARE}th of the card's {capacity / 2**30:.0f} "
        "GiB. Set a smaller data.batch_size or data.pack_length. Or give each document a row of "
        "its own, which needs no mask: data.max_sequences_per_pack=1, padded to one of a few "
        "lengths (data.buckets), and for the longest model.sequence_parallel=ulysses."
    )


def _set(model: PreTrainedModel, name: str, attend: Any) -> bool:
    name = f"llm_finetuning_{name}"
    AttentionInterface.register(name, attend)
    model.set_attn_implementation(name)
    # transformers says no more than a warning of a model that computes attention in its own way.
    return bool(model.config._attn_implementation == name)


def _over_cards(attend: Any, mesh: DeviceMesh) -> Any:
    try:
        import deepspeed.comm
        from deepspeed.sequence.layer import DistributedAttention
    except ImportError as error:
        raise UserError(
            "model.sequence_parallel=ulysses needs the package deepspeed, which is not installed. "
            "Run: pip install 'lightning-gaudi[recipes,llm,deepspeed]'"
        ) from error
    deepspeed.comm.init_distributed(dist_init_required=False)

    def local(query: Tensor, key: Tensor, value: Tensor, *given: Any) -> Tensor:
        module, mask, options = given
        heads = (each.transpose(1, 2) for each in (query, key, value))
        found: Tensor = attend(module, *heads, mask, **options)[0]
        return found

    exchange = DistributedAttention(local, mesh.get_group(), scatter_idx=2, gather_idx=1)

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Takes (B, H, T / cards, D) and (B, G, T / cards, D); returns (B, T / cards, H, D)."""
        parts = (each.transpose(1, 2).contiguous() for each in (query, key, value))
        return exchange(*parts, 0, None, module, attention_mask, options), None

    return forward
