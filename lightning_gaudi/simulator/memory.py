"""Logs what the simulated card allocates and frees, to say which tensors made the peak."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from lightning_gaudi.simulator.settings import CARD, CARDS
from lightning_gaudi.simulator.statistics import device

_PLENTY_BYTES = 2**50


class Peak(NamedTuple):
    """The moment at which most was in use."""

    num_bytes: int
    """All that was in use, as the card's statistics count it."""
    live: Mapping[int, int]
    """The bytes of each tensor that was there, by its allocation's number."""

    @property
    def beside_tensors(self) -> int:
        """What the card's allocator took beyond the tensors.

        It rounds sizes up, and keeps a header, a pool of small chunks and a workspace for graphs.
        """
        return self.num_bytes - sum(self.live.values())


class MemoryLog:
    """Keeps a log from now on until it is closed; there is one at a time.

    Raises:
        SimulatorError: The simulator is not active.
    """

    def __init__(self) -> None:
        self._device = device()
        self._device.log_memory(True)

    def mark(self) -> int:
        """Returns the present place in the log, as `peak` takes it."""
        size: int = self._device.memory_log_size()
        return size

    def number_of(self, tensor: Tensor) -> int:
        """Returns the number of a tensor's allocation, or 0 if it is not on the card."""
        number: int = self._device.allocation_of(tensor)
        return number

    def most(self, start: int) -> int:
        """Returns the most bytes in use since a `mark`; what was there at the start counts."""
        num_bytes: int = self._device.most_logged(start)
        return num_bytes

    def peak(self, start: int = 0, end: int | None = None) -> Peak:
        """Returns the moment at which most was in use; what was there at the start counts.

        Args:
            start: A `mark`.
            end: Another one; None for now.
        """
        return Peak(*self._device.logged_peak(start, self.mark() if end is None else end))

    def close(self) -> None:
        """Ends the log."""
        self._device.log_memory(False)


def own_server() -> None:
    """Moves this process, a fork that has used no card, to a server that no other process uses."""
    device().set_server(f"{os.getpid()}-{os.urandom(4).hex()}")


def unlimited_memory() -> None:
    """Gives the card more memory than any has, to see what a program would take.

    The card's statistics report that memory, too: DeepSpeed lays weights out on a card only if it
    has room for them, else on the host.
    """
    device().set_memory_limit(_PLENTY_BYTES)


def take_card(key: str) -> None:
    """Gives this process, a fork that has used no card, a card of another kind.

    Args:
        key: One of `settings.CARDS`.
    """
    os.environ[CARD] = key
    # The stand-in reads the environment once and keeps the card.
    importlib.import_module("habana_frameworks.torch._card").card.cache_clear()
    device().compose_attention(not CARDS[key].has_fused_attention)
