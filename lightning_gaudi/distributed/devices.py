"""What a user may write for `devices` with `accelerator="hpu"`, and which cards it means."""

from __future__ import annotations

from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._core import vendor

_FORMS = (
    "Pass a number of cards (devices=1), card indices (devices=[0] or '0,1'), or 'auto' or -1 for "
    "all cards."
)


def parse_devices(devices: Any) -> list[int]:
    """The cards that `devices` names, as positions among those that this job may use.

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
    if count > num_cards:
        raise MisconfigurationException(
            f"devices={devices!r} asks for {count} HPUs, but {_have(num_cards)}. "
            f"Pass devices={num_cards} or fewer."
        )
    return [vendor.selected_position()] if count == 1 else list(range(count))


def _have(count: int) -> str:
    cards = f"{count} HPU" if count == 1 else f"{count} HPUs"
    if count < vendor.device_count():
        return f"HABANA_VISIBLE_MODULES leaves {cards} of this machine's {vendor.device_count()}"
    return f"this machine has {cards}"
