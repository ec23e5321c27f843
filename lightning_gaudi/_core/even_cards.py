"""How many cards of a Gaudi 3 a job may use: one, or an even number.

Source: Intel Gaudi PyTorch bridge 1.24.0, `hpu/_utils.py` (`_get_available_modules_from_environ`),
which asserts it of HABANA_VISIBLE_MODULES.
"""

from __future__ import annotations

SINCE = (1, 24)
"""The release that has the rule."""


def is_refused(num_cards: int, generation: int | None, release: tuple[int, ...]) -> bool:
    """Returns whether so many cards cannot be used together.

    Args:
        num_cards: How many modules are visible, or ranks are started on a node.
        generation: 3 for a Gaudi 3; None if it is not known.
        release: The numbers of the Gaudi software's release.
    """
    return generation == 3 and num_cards > 1 and num_cards % 2 == 1 and release[:2] >= SINCE
