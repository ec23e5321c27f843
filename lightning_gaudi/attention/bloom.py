"""Fused attention for Bloom, which does not look its attention up in transformers' registry.

Its ALiBi bias is not learnt, so the kernel takes it as numbers in the mask.

B batch, H heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from .kernel import NAME, dtype_for, finite
from .models import refuse, with_bias
from .switch import fused_or_torchs, torchs

_MEMO = "_gaudi_mask"
"""The attribute of a forward pass's ALiBi tensor that holds the mask made from it."""


def is_asked_for(attention: nn.Module) -> bool:
    """Returns whether the configuration of a `BloomAttention`'s model names the kernel."""
    config = getattr(attention, "config", None)
    return getattr(config, "_attn_implementation", None) == NAME


def forward(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    *,
    cache_position: Tensor | None = None,
    head_mask: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """`BloomAttention.forward` by the kernel, and by "sdpa" on other devices than the HPU.

    Args:
        self: The layer's `BloomAttention`.
        hidden_states: (B, T, H * D).
        residual: (B, T, H * D), added to the result.
        alibi: (B * H, 1, S).
        attention_mask: (B, 1, T, S), added to the scores; None for causality alone.
        layer_past: The cache of keys and values.
        cache_position: Where in the cache the tokens go; transformers before 5.
        head_mask: Refused.
        output_attentions: Refused.
        kwargs: What else the block passes.

    Returns:
        (B, T, H * D), and the cache.

    Raises:
        ValueError: The layer wants what the kernel does not do.
    """
    _refuse(self, head_mask, output_attentions)
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        place = [] if cache_position is None else [{"cache_position": cache_position}]
        key, value = layer_past.update(key, value, self.layer_idx, *place)
    if attention_mask is None and query.shape[2] > 1:
        # In the first pass a static cache is empty behind the text.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    mask = _mask(alibi, attention_mask, query, key.shape[2])
    dropout = self.attention_dropout.p if self.attention_dropout.training else 0.0
    settings = (mask, dropout, False, self.inv_norm_factor, False)
    if query.device.type == "hpu":
        context = fused_or_torchs(query, key, value, *settings, zeros_if_hidden=False)
    else:
        context = torchs(query, key, value, *settings)
    out = self.dense(context.transpose(1, 2).flatten(2))
    # transformers 4.49 expects the cache as the second value. Later releases expect the weights
    # there, which they read only if somebody has asked for them.
    return residual + F.dropout(out, self.hidden_dropout, self.training), layer_past


def _mask(alibi: Tensor, attention_mask: Tensor | None, query: Tensor, num_keys: int) -> Tensor:
    """Returns the mask that is added to the scores, (B, H, T, S), made once for all layers.

    All layers of a forward pass get the same two tensors, and the backward pass should keep one
    mask instead of one for each layer. The mask lives as long as the ALiBi tensor.
    """
    made_for = (query.shape, num_keys, dtype_for(query))
    memo = getattr(alibi, _MEMO, None)
    if memo is not None and memo[0] is attention_mask and memo[1] == made_for:
        made: Tensor = memo[2]
        return made
    batch_size, num_heads, num_tokens, _ = query.shape
    bias = alibi.view(batch_size, num_heads, 1, -1)[..., :num_keys]
    is_causal = attention_mask is None and num_tokens > 1
    mask = None if attention_mask is None else attention_mask[..., :num_keys]
    made = finite(with_bias(bias, mask, query, is_causal), query)
    setattr(alibi, _MEMO, (attention_mask, made_for, made))
    return made


def _refuse(layer: Any, head_mask: Tensor | None, output_attentions: bool) -> None:
    refuse(layer, {"head_mask": head_mask, "output_attentions": output_attentions})
    if layer.pretraining_tp > 1 and layer.slow_but_exact:
        raise ValueError(
            f"attn_implementation={NAME!r} cannot compute {type(layer).__name__} with "
            f"slow_but_exact=True and pretraining_tp={layer.pretraining_tp}, which sum up in the "
            "order of the training run. Set slow_but_exact=False, or pass "
            "attn_implementation='eager'."
        )
