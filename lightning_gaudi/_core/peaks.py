"""What a card can do and hold at most."""

from __future__ import annotations

import torch

from . import vendor

BF16_PEAKS: dict[str, int] = {
    "GAUDI": 60 * 10**12,
    "GAUDI2": 432 * 10**12,
    "GAUDI3": 1835 * 10**12,
}
"""FLOP/s of matrix multiplications in bf16, by the vendor's device name.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024.
"""

MEMORY_BYTES: dict[str, int] = {
    "GAUDI": 32 * 2**30,
    "GAUDI2": 96 * 2**30,
    "GAUDI3": 128 * 2**30,
}
"""Device memory, by the vendor's device name; a card's allocator has a little less.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024.
"""


def available_flops(dtype: torch.dtype | str) -> int | None:
    """The peak of this process's card in `dtype`, in FLOP/s; None where none is published."""
    is_bf16 = dtype in (torch.bfloat16, "bfloat16", "bf16")
    return BF16_PEAKS.get(vendor.device_name()) if is_bf16 else None
