"""Says which keys a query of scaled dot product attention may see.

B batch, H query heads, T query tokens, S key tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Window = Sequence[int]
_PADDING = ("left", "right")
_EVERYWHERE = (-1, -1)
_LEAST = -87.0
"""About where exponentials in fp32 cease to be normal numbers."""


def is_open(window: Window | None) -> bool:
    """Returns whether a window leaves out no key."""
    return window is None or tuple(window) == _EVERYWHERE


def hidden_keys(
    scores: torch.Tensor,
    is_causal: bool,
    valid_seq_len: torch.Tensor | None = None,
    seq_padding_type: str = "left",
    window: Window | None = None,
) -> torch.Tensor | None:
    """Returns the keys that causality, padding and a window hide.

    Args:
        scores: Shape (B, ..., T, S).
        is_causal: Whether a token sees no later one.
        valid_seq_len: How many tokens of each sample are no padding, of shape (B,).
        seq_padding_type: "left" or "right": where the padding is.
        window: Query i sees keys i - window[0] to i + window[1]; -1 for no end.

    Returns:
        Booleans that broadcast to the scores, or None if all are seen. A query that would see no
        key, as one of padding, sees all: its result has no meaning, but is a number.

    Raises:
        ValueError: There is no such padding.
    """
    if seq_padding_type not in _PADDING:
        raise ValueError(f"seq_padding_type={seq_padding_type!r} is neither left nor right.")
    num_queries, num_keys = scores.shape[-2:]
    keys = torch.arange(num_keys, device=scores.device)
    distance = keys - torch.arange(num_queries, device=scores.device).unsqueeze(1)
    hidden = []
    if is_causal:
        hidden.append(distance > 0)
    if not is_open(window):
        left, right = window or _EVERYWHERE
        hidden += [distance < -left] if left >= 0 else []
        hidden += [distance > right] if right >= 0 else []
    if valid_seq_len is not None:
        length = valid_seq_len.reshape(-1, *[1] * (scores.dim() - 1))
        is_left = seq_padding_type == "left"
        hidden.append(keys < num_keys - length if is_left else keys >= length)
    if not hidden:
        return None
    together = hidden[0]
    for each in hidden[1:]:
        together = together | each
    # A query of padding sees no key, and the softmax of such a row would be NaN.
    return together if valid_seq_len is None else together & ~together.all(-1, keepdim=True)


def sink_logits(sink: torch.Tensor | None, scores: torch.Tensor) -> torch.Tensor | None:
    """Returns each head's logit that takes part in the softmax and sees no value.

    Args:
        sink: Shape (H,), or None.
        scores: Shape (B, H, T, S), or (B, groups, H / groups, T, S).

    Returns:
        fp32, in a shape that broadcasts to (B, ..., T, 1), or None.

    Raises:
        ValueError: There are more or fewer heads.
    """
    if sink is None:
        return None
    heads = scores.shape[1:-2]
    if sink.dim() != 1 or sink.numel() != heads.numel():
        raise ValueError(
            f"sink has shape {tuple(sink.shape)} and there are {heads.numel()} query heads. "
            "Pass one number a head."
        )
    return sink.float().reshape(1, *heads, 1, 1)


def softmax_with_sink(
    scores: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the probabilities of keys, and what a backward pass needs to compute them again.

    Args:
        scores: Shape (B, ..., T, S), fp32.
        sink: See `sink_logits`.

    Returns:
        Probabilities (B, ..., T, S); each row's largest score and inverse sum of exponentials,
        (B, ..., T, 1).
    """
    logits = sink_logits(sink, scores)
    m = scores.amax(-1, keepdim=True)
    if logits is None:
        probabilities = scores.softmax(-1)
        return probabilities, m, probabilities.amax(-1, keepdim=True)  # 1 / sum, as exp(0) is 1
    m = torch.maximum(m, logits)
    exponentials = exp_(scores - m)
    linv = 1 / (exponentials.sum(-1, keepdim=True) + (logits - m).exp())
    return exponentials.mul_(linv), m, linv


def exp_(differences: torch.Tensor) -> torch.Tensor:
    """Computes, in place, the exponentials of scores less the largest of their row.

    What fp32 has no normal number for becomes 0. The library that computes torch's exp on a CPU
    takes ten to forty times as long for such results, and masked scores have them.
    """
    exponentials = differences.clamp_(min=_LEAST).exp_()
    return torch.threshold_(exponentials, 1.01 * math.exp(_LEAST), 0.0)
