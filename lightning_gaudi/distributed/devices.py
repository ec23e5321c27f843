"""Reads `devices`, finds the cards that it means, and binds this process to its card."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._core import launched, vendor

DEVICE = torch.device("hpu", 0)
"""The device of every process, whichever card it drives."""

_MAX_CARDS = 8
"""The cards of a server."""

_FORMS = (
    "Pass a number of cards (devices=1), card indices (devices=[0] or '0,1'), or 'auto' or -1 for "
    "all cards."
)


def parse_devices(devices: Any) -> list[int]:
    """Returns the cards that `devices` names, as positions among those that this job may use.

    Args:
        devices: A number of cards, -1 for all; the same as a string; a list or tuple of indices,
            or a string of them with commas.

    Returns:
        The indices, in the user's order; for one card of any, the one this process was told to
        drive, or else the first.

    Raises:
        MisconfigurationException: It is none of these, names a card twice, none, or one that is
            not there.
    """
    num_cards = vendor.num_visible_cards()
    value = _read(devices)
    if isinstance(value, int):
        return _first(num_cards if value == -1 else value, num_cards, devices)
    if not value or len(set(value)) < len(value):
        raise MisconfigurationException(
            f"devices={devices!r} names {'a card twice' if value else 'no card'}. {_FORMS}"
        )
    for index in value:
        if not 0 <= index < num_cards:
            raise MisconfigurationException(
                f"devices={devices!r} names HPU {index}, but {_have(num_cards)}, with the indices "
                f"0 to {num_cards - 1}."
            )
    return value


def _read(devices: Any) -> int | list[int]:
    if isinstance(devices, str):
        text = devices.strip()
        try:
            if "," in text:
                return [int(part) for part in text.split(",") if part.strip()]
            return int(text)
        except ValueError:
            pass
    elif isinstance(devices, int) and not isinstance(devices, bool):
        return devices
    elif isinstance(devices, (list, tuple)) and all(type(index) is int for index in devices):
        return list(devices)
    raise MisconfigurationException(f"devices={devices!r} is not understood. {_FORMS}")


def _first(count: int, num_cards: int, devices: Any) -> list[int]:
    if count < 1:
        raise MisconfigurationException(f"devices={devices!r} asks for no card. {_FORMS}")
    if count > num_cards and not _is_pinned_to(count):
        how = "HPU" if count == 1 else "HPUs"
        raise MisconfigurationException(
            f"devices={devices!r} asks for {count} {how}, but {_have(num_cards)}. "
            f"{_instead(num_cards)}"
        )
    return [vendor.selected_position()] if count == 1 else list(range(count))


def _is_pinned_to(count: int) -> bool:
    """Returns whether a launcher has started so many processes that see one card each."""
    found = launched.find_launched() if launched.is_pinned() else None
    return found is not None and count in (found.local_size, found.world_size)


def _instead(num_cards: int) -> str:
    if num_cards > 1:
        return f"Pass devices={num_cards} or fewer."
    if num_cards == 1:
        return "Pass devices=1."
    if vendor.device_count():
        return "Name cards in HABANA_VISIBLE_MODULES, or unset it."
    return (
        "Run on a machine with a Gaudi (`lightning-gaudi doctor` says why none is seen), pass "
        "accelerator='cpu', or try the program with `lightning-gaudi simulate -- python ...`."
    )


def check_number(num_devices: int) -> None:
    """Refuses an odd number of cards of a kind that is used in pairs.

    Args:
        num_devices: The ranks of a node.

    Raises:
        MisconfigurationException: They cannot be used together; see `_core.even_cards`.
    """
    found = {"devices": num_devices, "HABANA_VISIBLE_MODULES": vendor.num_visible_cards()}
    if num_devices == 1:
        return
    for name, number in found.items():
        is_told = name == "devices" or name in os.environ
        if is_told and vendor.refuses_together(number):
            fewer, more = number - 1, number + 1
            raise MisconfigurationException(
                f"{name} names {number} cards of a Gaudi 3, which takes one or an even number "
                "(Intel Gaudi PyTorch bridge 1.24.0, hpu/_utils.py). Use "
                f"{f'{fewer} or {more}' if more <= _MAX_CARDS else fewer} of them."
            )


def _have(count: int) -> str:
    cards = f"{count} HPU" if count == 1 else f"{count} HPUs"
    if count < vendor.device_count():
        return f"HABANA_VISIBLE_MODULES leaves {cards} of this machine's {vendor.device_count()}"
    return f"this machine has {cards}"


def to_hpu_device(device: Any) -> torch.device:
    """Returns the device of a strategy for one card, with the index that its tensors have.

    Raises:
        ValueError: It is not the HPU of this process.
    """
    found = torch.device("hpu", device) if isinstance(device, int) else torch.device(device)
    if found.type != "hpu" or found.index not in (None, 0):
        raise ValueError(
            f"SingleHPUStrategy(device={device!r}) is not the HPU of this process. Pass 'hpu': a "
            "process drives one card, with the index 0."
        )
    return DEVICE


def select_card(devices: Sequence[torch.device], local_rank: int) -> None:
    """Binds this process to its card.

    The driver reads the card from HLS_MODULE_ID when it starts the device. Where a launcher has set
    that, one value for each rank, it is kept; where it has left each process one card, that is it,
    whatever the local rank. A process that has used its HPU before is bound by then: to the module
    of its local rank, as the vendor's package selects it, or to the first one.

    Args:
        devices: The cards of this node's ranks; an index is a position among the visible modules.
        local_rank: This process among those of its node.

    Raises:
        MisconfigurationException: There is no such card, or the process drives another one.
    """
    # Each process sees its own card alone, as the first.
    if launched.is_pinned():
        devices, local_rank = devices[:1], 0
    if local_rank >= len(devices):
        raise MisconfigurationException(
            f"This process has the local rank {local_rank}, but devices={len(devices)} starts "
            f"{len(devices)} on a node. Pass as many devices as processes are started."
        )
    modules = [vendor.module_id(index) for index in _positions(devices)]
    module, told = modules[local_rank], vendor.selected_module()
    if told is not None and not vendor.is_guess(told):
        if told not in modules:
            raise MisconfigurationException(
                f"This process drives module {told}, as HLS_MODULE_ID says, but the devices of "
                f"this run are the modules {', '.join(modules)}. Unset HLS_MODULE_ID, or pass "
                "other devices."
            )
    # A single rank with several visible cards is left to the driver, which takes a free one.
    elif modules != [vendor.module_id(0)] or launched.sees_one_card():
        _check_bound(vendor.bound_module(), module, local_rank)
        vendor.select_module(module)


def check_float16(setting: str, instead: str) -> None:
    """Refuses float16 on a card that does not compute in it; acquires the card.

    Args:
        setting: What asks for it, as the user typed it.
        instead: What to pass instead.

    Raises:
        MisconfigurationException: The card does not compute in it.
    """
    if not vendor.is_fp16_supported():
        raise MisconfigurationException(
            f"{setting} needs a card that computes in float16, which {vendor.device_name()} does "
            f"not. Pass {instead}, or use another card."
        )


def _check_bound(bound: str, module: str, local_rank: int) -> None:
    """Refuses another module than the one that an HPU in use is bound to."""
    if bound != module and vendor.is_initialized():
        raise MisconfigurationException(
            f"Local rank {local_rank} is to drive module {module}, but has used its HPU before "
            f"training began, and was bound to module {bound} then. Use no hpu tensor before "
            "Trainer.fit or Fabric.launch, set HLS_MODULE_ID before Python starts, or leave it to "
            "the ranks which card each drives: devices=8, say, and not a list."
        )


def _positions(devices: Sequence[torch.device]) -> list[int]:
    """Returns the cards' positions; devices without distinct indices are the first ones."""
    indices = [device.index or 0 for device in devices]
    return indices if len(set(indices)) == len(indices) else list(range(len(indices)))
