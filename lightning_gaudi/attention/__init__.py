"""Computes attention by the vendor's fused kernel where torch would compose it of operators.

In reading order:

- `kernel`: the kernel behind the arguments of `F.scaled_dot_product_attention`, and what it cannot
  do.
- `switch`: when `F.scaled_dot_product_attention` is the kernel, and what stays torch's.
- `models`: the same for models of transformers, under a name.
"""

from lightning_gaudi.attention.kernel import NAME, fused_sdpa
from lightning_gaudi.attention.switch import fused_attention, is_fused

__all__ = ["NAME", "fused_attention", "fused_sdpa", "is_fused"]
