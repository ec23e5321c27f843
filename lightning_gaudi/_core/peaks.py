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
    """The peak of this process's card in `dtype`, in FLOP/s; None where `why_no_peak` says why."""
    return None if why_no_peak(dtype) else BF16_PEAKS[vendor.device_name()]


def why_no_peak(dtype: torch.dtype | str) -> str | None:
    """Why there is no peak to compare this process's card with; None where there is one."""
    simulation = vendor.metric("simulation")
    if simulation is not None:
        return (
            f"No MFU is reported: this {vendor.device_name()} is simulated and computes on "
            f"{simulation['ComputesOn']}, whose speed is no Gaudi's."
        )
    if vendor.device_name() not in BF16_PEAKS:
        known = ", ".join(BF16_PEAKS)
        return f"No MFU is reported: no peak is known of {vendor.device_name()!r}, but of {known}."
    if dtype not in (torch.bfloat16, "bfloat16", "bf16"):
        return (
            f"No MFU is reported: of a {vendor.device_name()} the peak in bfloat16 is known, and "
            f"this trains in {str(dtype).removeprefix('torch.')}."
        )
    return None
