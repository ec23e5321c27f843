"""How fast a card is at most, to compare what it reached with."""

from __future__ import annotations

import torch

from lightning_gaudi.hardware import GAUDIS

from . import vendor


def available_flops(dtype: torch.dtype | str) -> int | None:
    """The peak of this process's card in `dtype`, in FLOP/s; None where `why_no_peak` says why."""
    card = vendor.generation()
    if card is None or why_no_peak(dtype):
        return None
    return int(card.peaks[_name(dtype)])


def why_no_peak(dtype: torch.dtype | str) -> str | None:
    """Returns why there is no peak to compare this process's card with; None where there is one."""
    simulation = vendor.metric("simulation")
    if simulation is not None:
        return (
            f"No MFU is reported: this {vendor.device_name()} is simulated and computes on "
            f"{simulation['ComputesOn']}, whose speed is no Gaudi's."
        )
    card = vendor.generation()
    if card is None:
        known = ", ".join(each.device_name for each in GAUDIS.values())
        return f"No MFU is reported: no peak is known of {vendor.device_name()!r}, but of {known}."
    if card.peak(_name(dtype)) is None:
        known = " and ".join(name for name in card.peaks if name != "tf32")
        return (
            f"No MFU is reported: of a {card.device_name} the peak in {known} is known, and "
            f"this trains in {_name(dtype)}."
        )
    return None


def _name(dtype: torch.dtype | str) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"bf16": "bfloat16", "fp32": "float32"}.get(name, name)
