"""Attention on the CPU in plain operators, and inputs for it.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_gaudi.data import block_diagonal_mask

B, H, T, D = 2, 4, 6, 8
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def qkv(
    num_key_heads: int = H,
    num_keys: int = T,
    value_dim: int = D,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(0)
    shapes = (B, H, T, D), (B, num_key_heads, num_keys, D), (B, num_key_heads, num_keys, value_dim)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    return [t.to(device, dtype).requires_grad_() for t in tensors]


def masks() -> dict[str, Tensor]:
    """By what they are for; True, or 0, where a query attends."""
    padding = (torch.arange(T) < torch.tensor([[T], [4]]))[:, None, None]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    hides_rows = causal.flip(0).expand(B, 1, T, T).clone()
    hides_rows[0, 0, 2] = False
    sequences = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 2, 2, 3, 3, 3]])
    bias = torch.randn(1, H, T, T, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(B, 1, T, T)
    return {
        "padding": padding,
        "padding as numbers": torch.zeros(B, 1, 1, T).masked_fill(~padding, -torch.inf),
        "padding and causal": padding & causal,
        "causal for all": causal,
        "packing": block_diagonal_mask(sequences),
        "a bias of each head": bias,
        "a bias without a batch": bias[0],
        "rows that see nothing": hides_rows,
        "rows that see nothing as numbers": zeros.masked_fill(~hides_rows, -torch.inf),
    }


def attend(*tensors: Tensor, **settings: object) -> Tensor:
    """Attention on the CPU, in operators."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **settings)


def compare(ours: list[Tensor], theirs: list[Tensor], out: Tensor, expected: Tensor) -> None:
    """Outputs, and the gradients of the same upstream gradient."""
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    expected.backward(upstream)
    out.backward(upstream.to(out.device))
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), **CLOSE)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, **CLOSE)
