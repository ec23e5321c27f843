"""Attends without a [T, T] mask, and attends over rows whose tokens are spread over cards.

Both are registered with transformers as attention functions under new names, because transformers
makes no mask for names that it does not know. A row with a single document needs no mask: only
causality restricts what a token sees, and the kernels have an option for that.

Shapes: B rows, T tokens of a row, H heads of queries, G heads of keys, D size of a head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AttentionInterface, PreTrainedModel

from recipes.common.errors import UserError

_KNOWN = ("sdpa", "gaudi_fused_sdpa")
"""The attention functions that are causal when they are given no mask."""
_SHARE = 16
"""A mask may take this fraction of a card's memory: one sixteenth."""


def attend_without_mask(model: PreTrainedModel) -> bool:
    """Makes a model attend causally wherever it is given no mask.

    Returns:
        Whether the model can do so; if not, it is unchanged.
    """
    kind = model.config._attn_implementation
    if kind not in _KNOWN:
        return False
    return _set(model, f"causal_{kind}", AttentionInterface()[kind])


def attend_over_cards(model: PreTrainedModel, mesh: DeviceMesh, length: int) -> None:
    """Makes a model attend over rows of which each card has some tokens, by DeepSpeed's Ulysses.

    Each card exchanges its tokens of all heads for all tokens of some heads, attends, and
    exchanges the result back. The mask is that of whole rows.

    Args:
        model: a model whose attention is sdpa or gaudi_fused_sdpa.
        mesh: a mesh of one axis, whose cards share the rows.
        length: the number of tokens of a row (T).

    Raises:
        UserError: The attention is another, or heads or tokens cannot be divided by the cards.
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
                f"trainer.strategy) share {what}, {size}, which is no multiple of {num_cards}. Set "
                "a number of cards that divides it."
            )
    attend = AttentionInterface()[kind] if kind in _KNOWN else None
    if attend is None or not _set(model, f"ulysses_{kind}", _over_cards(attend, mesh)):
        raise UserError(
            "model.sequence_parallel=ulysses needs an attention that a card can compute for some "
            f"heads alone, and that of {type(model).__name__} is {kind}. Set model.attention to "
            f"{' or '.join(_KNOWN)}, or choose a model that supports one of them."
        )


def check_mask(num_rows: int, length: int, num_bytes: int, capacity: int) -> None:
    """Refuses a mask that would take too much of a card's memory.

    Args:
        num_rows: the rows of a batch (B).
        length: the tokens of a row (T).
        num_bytes: the size of an element of the mask, in bytes.
        capacity: the memory of a card, in bytes.

    Raises:
        UserError: The mask is larger than a sixteenth of the memory.
    """
    whole = num_rows * length**2 * num_bytes
    if whole <= capacity // _SHARE:
        return
    raise UserError(
        f"data.batch_size={num_rows} packed row(s) of {length} tokens need an attention mask of "
        f"{whole / 2**30:.1f} GiB, more than a {_SHARE}th of the card's {capacity / 2**30:.0f} "
        "GiB. Set a smaller data.batch_size or data.pack_length. Or give each document a row of "
        "its own, which needs no mask: set data.max_sequences_per_pack=1, data.buckets to a few "
        "lengths, and for the longest rows model.sequence_parallel=ulysses."
    )


def _set(model: PreTrainedModel, name: str, attend: Any) -> bool:
    name = f"llm_finetuning_{name}"
    AttentionInterface.register(name, attend)
    model.set_attn_implementation(name)
    # If a model computes attention in its own way, transformers only warns and keeps that way.
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

    # Ulysses works on [B, T, H, D], and the attention functions of transformers on [B, H, T, D].
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
        """Takes [B, H, T / cards, D] and [B, G, T / cards, D]; returns [B, T / cards, H, D]."""
        parts = (each.transpose(1, 2).contiguous() for each in (query, key, value))
        # After the dim of the batch and no rotary embedding, all is handed on to `local`.
        return exchange(*parts, 0, None, module, attention_mask, options), None

    return forward
