"""Makes handwritten digits in colour, and their captions: "a red seven".

1,797 digits that 43 people wrote, 8x8 pixels of 16 levels, come with scikit-learn; the colour is
put on at run time. Some pairs of colour and digit are never shown in training: who paints them has
understood that a colour and a digit are two things.

Shapes: N digits, 8x8 pixels.
Source: Alpaydin, Kaynak: Optical Recognition of Handwritten Digits (UCI, 1998), its test part.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE: Final = 8
PALETTE: Final = {
    "red": (0.85, 0.10, 0.10),
    "green": (0.10, 0.60, 0.15),
    "blue": (0.10, 0.25, 0.85),
    "golden": (0.95, 0.60, 0.05),
    "purple": (0.55, 0.15, 0.70),
    "turquoise": (0.05, 0.65, 0.70),
}
"""The inks, in shares of red, green and blue; the paper is white."""
NAMES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Pair(NamedTuple):
    """A colour and a digit, by their places in `PALETTE` and `NAMES`."""

    colour: int
    digit: int

    @property
    def caption(self) -> str:
        """The caption of a picture of it."""
        return f"a {list(PALETTE)[self.colour]} {NAMES[self.digit]}"


PAIRS: Final = tuple(Pair(colour, digit) for colour in range(len(PALETTE)) for digit in range(10))
HELD_OUT: Final = frozenset(
    Pair((digit + 3 * (digit // 6)) % len(PALETTE), digit) for digit in range(len(NAMES))
)
"""One colour of each digit, which training never shows; each colour is missing once or twice."""
TRAINED: Final = tuple(pair for pair in PAIRS if pair not in HELD_OUT)


class Digits(NamedTuple):
    """Holds digits of a split, without colour."""

    ink: NDArray[np.float32]
    """[N, 8, 8], from 0, paper, to 1."""
    digits: NDArray[np.int64]
    """[N], 0 to 9."""


def read_splits(held_out_share: float, seed: int) -> dict[str, Digits]:
    """Returns the digits as train, validation and test.

    Args:
        held_out_share: of all digits, for validation, and as many for test.
        seed: of which ones.
    """
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    ink = (pixels / 16).astype(np.float32).reshape(-1, SIZE, SIZE)
    order = np.random.default_rng(seed).permutation(len(ink))
    size = max(1, round(held_out_share * len(ink)))
    parts = order[2 * size :], order[:size], order[size : 2 * size]
    names = ("train", "validation", "test")
    return {
        name: Digits(ink[part], digits[part].astype(np.int64))
        for name, part in zip(names, parts, strict=True)
    }


def paint(ink: NDArray[np.float32], colour: int) -> NDArray[np.float32]:
    """Puts a colour on a digit [8, 8]: [3, 8, 8], from -1 to 1, as a UNet has pictures."""
    absorbed = 1 - np.array(list(PALETTE.values())[colour], dtype=np.float32)
    return 1 - 2 * ink[None] * absorbed[:, None, None]
