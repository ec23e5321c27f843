"""Decides whether `F.scaled_dot_product_attention` is the fused kernel on the HPU.

`LIGHTNING_GAUDI_FUSED_ATTENTION=1` switches it on, and `=0` off. Without the variable it is on as
soon as an HPUAccelerator takes its card. `fused_attention` overrides that for a block of code.

It is on by default, although the vendor's dispatch uses operators unless asked: the vendor's
Megatron-LM, vLLM and optimum-habana call the kernel themselves, and nothing tells a user to do so.
A first Gaudi does not have the kernel, and it is not known to work in float16, so operators are
used there. Results differ by rounding, since the softmax is the precise one. The kernel is called
from here and not by `torch.nn.attention.sdpa_kernel(SDPBackend.OVERRIDEABLE)`, whose backward pass
ignores a mask that needs no gradient in 1.24.0.

Source: Gaudi PyTorch bridge 1.24.0, habana_eager/ops/fused_sdpa.cpp.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_gaudi._core.settings import Setting, Wording

from .kernel import attend, dtype_for, is_torchs_to_answer, why_not_fused

VARIABLE = "LIGHTNING_GAUDI_FUSED_ATTENTION"


def _read(value: object) -> bool | None:
    return {"1": True, "0": False}.get(str(value))


SETTING = Setting(
    bool,
    VARIABLE,
    Wording(
        purpose="whether attention on the HPU is fused",
        forms="Write 1 (one kernel) or 0 (operators), or unset it for the default, which is 1.",
    ),
    _read,
)
"""The environment's switch, which overrides `switch_on_by_default`."""

# State of the process and not of a thread, since autograd recomputes checkpointed layers in threads
# of its own.
_given = os.environ.get(VARIABLE) or None
_asked = None if _given is None else _read(_given)
_default = False
_chosen: bool | None = None
_warned: set[str] = set()

_torchs = torch._C._nn.scaled_dot_product_attention


def is_fused() -> bool:
    """Returns whether attention on the HPU is to be fused at this point.

    Raises:
        ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION is neither 1 nor 0.
    """
    if _chosen is not None:
        return _chosen
    if _given is None:
        return _default
    # The variable was read at import, since a graph that is traced through here cannot read it.
    return bool(SETTING.parse(_given, VARIABLE) if _asked is None else _asked)


def switch_on_by_default() -> None:
    """Fuses attention in this process from now on, unless the user has switched it off.

    Raises:
        ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION is neither 1 nor 0.
    """
    global _default
    _default = True
    # Raises here, where the card is taken, if the variable has a wrong value.
    is_fused()


@contextmanager
def fused_attention(enabled: bool = True) -> Iterator[None]:
    """Switches fused attention on or off for this block.

    If activations are checkpointed, put it around the backward pass, too, which computes them
    again. It holds for all threads of the process.

    Args:
        enabled: Whether to fuse.
    """
    global _chosen
    before, _chosen = _chosen, enabled
    try:
        yield
    finally:
        _chosen = before


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replaces torch's function; it is fused on the HPU if the switch is on."""
    if query.device.type == "hpu" and is_fused():
        return fused_or_torchs(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def fused_or_torchs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    zeros_if_hidden: bool = True,
) -> Tensor:
    """Computes attention by the fused kernel, or with a warning by torch if that is impossible."""
    tensors = (query, key, value)
    if is_torchs_to_answer(tensors, attn_mask, dropout_p, is_causal):
        return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason := why_not_fused(tensors, attn_mask, enable_gqa, dtype_for(query)):
        _warn_once(reason)
        # DTensor has sharding rules for operators, but not for the kernels of all devices.
        is_math = any(map(is_traceable_wrapper_subclass, tensors))
        with sdpa_kernel(SDPBackend.MATH) if is_math else nullcontext():
            return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, zeros_if_hidden)


def torchs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Calls torch's own function, which this module's has replaced."""
    result: Tensor = _torchs(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result


def _warn_once(reason: str) -> None:
    # Reasons may end with shapes in parentheses, which differ from call to call.
    kind = reason.partition("(")[0]
    if kind in _warned or os.environ.get("RANK", "0") != "0":
        return
    _warned.add(kind)
    warnings.warn(
        f"Attention on the HPU is composed of operators here, not fused: {reason}. Results are "
        "right, but it is slower and keeps the scores in memory. To be spared this message, set "
        f"{VARIABLE}=0, or call it in lightning_gaudi.attention.fused_attention(False).",
        UserWarning,
        stacklevel=2,
    )


# A graph cannot warn, so the warning is given when the graph is traced; see
# `_card_without_kernel` in `kernel`.
_warn_once._dynamo_marked_constant = True  # type: ignore[attr-defined]
