"""Whether `F.scaled_dot_product_attention` is the fused kernel for tensors on the HPU.

`LIGHTNING_GAUDI_FUSED_ATTENTION=1` says yes, `=0` no; without it, yes from the moment that an
HPUAccelerator takes its card. `fused_attention` says otherwise for a block of code.

On by default, though the vendor's dispatch takes operators unless asked: its Megatron-LM, vLLM
and optimum-habana call the kernel themselves, and nothing tells a user that they have to. A first
Gaudi does not have the kernel, nor is it known to work in float16: operators compute it there.
Numbers differ by rounding: the softmax is the precise one. The kernel is called from here, not by
`torch.nn.attention.sdpa_kernel(SDPBackend.OVERRIDEABLE)`: in 1.24.0 its backward pass forgets a
mask that wants no gradient.

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
"""What the environment says; without it, `switch_on_by_default` does."""

# For the whole process, and not for a thread: autograd recomputes checkpointed layers in its own.
_given = os.environ.get(VARIABLE) or None
_asked = None if _given is None else _read(_given)
_default = False
_chosen: bool | None = None
_warned: set[str] = set()

_torchs = torch._C._nn.scaled_dot_product_attention


def is_fused() -> bool:
    """Returns whether attention on the HPU is to be fused, here and now.

    Raises:
        ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION is neither 1 nor 0.
    """
    if _chosen is not None:
        return _chosen
    if _given is None:
        return _default
    # What is read is known before a graph is traced through here.
    return bool(SETTING.parse(_given, VARIABLE) if _asked is None else _asked)


def switch_on_by_default() -> None:
    """Fuses attention in this process from now on, unless the user says otherwise.

    Raises:
        ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION is neither 1 nor 0.
    """
    global _default
    _default = True
    is_fused()


@contextmanager
def fused_attention(enabled: bool = True) -> Iterator[None]:
    """Fuses `F.scaled_dot_product_attention` on the HPU within this block, or does not.

    Put it around the backward pass as well where activations are checkpointed: they are computed
    again there. It holds for all threads of the process.

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
    """Takes the place of torch's function: on the HPU fused, where the switch says so."""
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
    """Returns the fused kernel; torch's operators, and a warning, for what the kernel cannot do."""
    tensors = (query, key, value)
    if is_torchs_to_answer(tensors, attn_mask, dropout_p, is_causal):
        return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason := why_not_fused(tensors, attn_mask, enable_gqa, dtype_for(query)):
        _warn_once(reason)
        # DTensor has rules for operators, and not for the kernels of all devices.
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
    """Returns what torch has had there itself."""
    result: Tensor = _torchs(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result


def _warn_once(reason: str) -> None:
    # The shapes differ from call to call, the reason does not.
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


# A graph cannot warn: it happens as the graph is traced. This is what torch.compiler's
# assume_constant_result does (torch 2.6 to 2.13), which imports the compiler for it.
_warn_once._dynamo_marked_constant = True  # type: ignore[attr-defined]
