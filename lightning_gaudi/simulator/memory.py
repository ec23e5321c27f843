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
        return len(self._device.memory_log())

    def number_of(self, tensor: Tensor) -> int:
        """Returns the number of a tensor's allocation, or 0 if it is not on the card."""
        number: int = self._device.allocation_of(tensor)
        return number

    def peak(self, start: int = 0, end: int | None = None) -> Peak:
        """Returns the moment at which most was in use; what was there at the start counts.

        Args:
            start: A `mark`.
            end: Another one; None for now.
        """
        events: list[tuple[int, int, int]] = self._device.memory_log()[:end]
        total = sum(counted for _, _, counted in events[:start])
        most, at = total, start
        for index, (_, _, counted) in enumerate(events[start:], start):
            total += counted
            if total > most:
                most, at = total, index + 1
        live: dict[int, int] = {}
        # A number of bytes below zero frees the allocation of that number.
        for number, num_bytes, _ in events[:at]:
            if num_bytes >= 0:
                live[number] = num_bytes
            else:
                live.pop(number, None)
        return Peak(most, live)

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
