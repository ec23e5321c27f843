"""Fused attention for models of transformers: `attn_implementation="gaudi_fused_sdpa"`.

The name is optimum-habana's. It works for models that look their attention up in transformers'
registry, which most do since 4.48, and BERT and T5 in later releases, and for Bloom by `bloom`.
Other models refuse the name. If a model asks for something that the kernel does not do, it raises.
The exception is a learnt position bias: layers with one, such as T5's first in training, use
torch's operators and warn.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from .kernel import NAME, finite, lowest
from .switch import fused_or_torchs

_REFUSED = {
    "softcap": "caps its scores",
    "s_aux": "has attention sinks",
    "head_mask": "masks heads",
    "output_attentions": "returns its weights",
    "cache": "keeps its keys in pages",
}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of a layer of transformers; on other devices by its "sdpa".

    Args:
        module: The layer.
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, D).
        attention_mask: Broadcasts to (B, H, T, S), and may have more keys than there are:
            booleans, True where to attend, or numbers that are added to the scores.
        dropout: Its probability.
        scaling: Multiplies the scores; 1 / sqrt(D) by default.
        is_causal: Whether a query sees no later key, where there is no mask; by default as the
            layer says.
        position_bias: Added to the scores, (1, H, T, S): T5's.
        kwargs: What else the layer passes.

    Returns:
        (B, T, H, D), and no weights.

    Raises:
        ValueError: The layer wants what the kernel does not do.
    """
    if query.device.type != "hpu":
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        bias = {} if position_bias is None else {"position_bias": position_bias}
        rest = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **bias, **kwargs}
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **rest
        )
        return result
    refuse(module, kwargs)
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = attention_mask is None and query.shape[2] > 1 and is_causal
    if is_causal and key.shape[2] > query.shape[2]:
        # In the first pass with a static cache no query may see the empty keys behind the text.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[-2]]
        attention_mask = with_bias(position_bias, attention_mask, query, is_causal)
        is_causal = False
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        attention_mask = finite(attention_mask, query)
    is_grouped = key.shape[1] != query.shape[1]
    out = fused_or_torchs(
        query, key, value, attention_mask, dropout, is_causal, scaling, is_grouped, False
    )
    return out.transpose(1, 2).contiguous(), None


def make_mask(
    *,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    dtype: torch.dtype = torch.float32,
    **kwargs: Any,
) -> Tensor | None:
    """Returns a model's mask in the kernel's form, made once for all layers.

    transformers reads the values of a padding mask to see whether it hides anything, for which the
    host would wait for the device. Here a padding mask is always applied.

    Args:
        attention_mask: (B, S), True for text and False for padding, or None for no padding.
        allow_is_causal_skip: Whether None may stand for causality alone.
        dtype: That of the result.
        kwargs: What else transformers passes to `sdpa_mask`.

    Returns:
        (B, 1, T, S), 0 where to attend and a very negative number elsewhere; or None.
    """
    from transformers.masking_utils import sdpa_mask

    has_padding = attention_mask is not None
    if "allow_is_bidirectional_skip" in kwargs and has_padding:
        kwargs["allow_is_bidirectional_skip"] = False
    mask = sdpa_mask(
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and not has_padding,
        **kwargs,
    )
    if mask is None:
        return None
    # Finite in bfloat16 as well, which autocast may make of it.
    hidden = max(lowest(dtype), lowest(torch.bfloat16))
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), hidden)


def check(model: type) -> None:
    """Raises unless a model looks up its attention by name.

    Raises:
        ValueError: It does not, and would ignore the name.
    """
    modules = [sys.modules.get(each.__module__) for each in model.__mro__]
    ours = [m for m in modules if m and m.__name__ != "transformers.modeling_utils"]
    if any(hasattr(m, "ALL_ATTENTION_FUNCTIONS") for m in ours):
        return
    # A model of models, such as an encoder with a decoder, has no attention of its own.
    if not any(_has_attention(m) for m in ours if not m.__name__.startswith("torch.")):
        return
    import transformers

    raise ValueError(
        f"attn_implementation={NAME!r} was asked for, but {model.__name__} of transformers "
        f"{transformers.__version__} does not look up its attention by name, and would compute it "
        "unfused. Pass attn_implementation='sdpa' if the model has it, which is fused on the HPU "
        "by default, or 'eager'."
    )


def _has_attention(module: Any) -> bool:
    return any(
        "Attention" in name
        and isinstance(found, type)
        and issubclass(found, nn.Module)
        and found.__module__ == module.__name__
        for name, found in vars(module).items()
    )


def refuse(module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Raises if a layer asks for something that the kernel does not do.

    Raises:
        ValueError: It does.
    """
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise ValueError(
                f"attn_implementation={NAME!r} cannot compute {type(module).__name__}, which "
                f"{what} ({name} was passed). Pass attn_implementation='eager'."
            )


def with_bias(bias: Tensor, mask: Tensor | None, query: Tensor, is_causal: bool) -> Tensor:
    """Returns an additive mask of a bias and of what a mask or causality hides.

    Args:
        bias: (1 or B, H, 1 or T, S).
        mask: Broadcasts to (B, H, T, S): booleans, True where to attend, or numbers.
        query: (B, H, T, D).
        is_causal: Whether a query sees no later key, where there is no mask.
    """
    if mask is None and is_causal:
        shape = query.shape[2], bias.shape[-1]
        mask = torch.ones(shape, dtype=torch.bool, device=bias.device).tril()
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(mask.logical_not(), lowest(query.dtype))
    return bias + mask
