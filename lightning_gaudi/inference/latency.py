"""Measures the time to the first token and for each further one, without the calls that warm up.

The clock is read after a wait for the device, since launching work takes almost no time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from lightning_gaudi._core import vendor


@dataclass(frozen=True)
class LatencyReport:
    """Holds what a `Stopwatch` has measured, without the calls that warm up."""

    num_calls: int
    """The number of calls that count."""
    num_warmup_calls: int
    """The number of calls before these, which compile and capture, and do not count."""
    seconds: float
    """The time of all calls that count, together."""
    num_items: int
    """The number of prompts or pictures in these calls."""
    num_tokens: int = 0
    """The number of tokens that these calls generated, up to each row's end."""
    first_token_ms: float | None = None
    """The time from the prompt to the first token of all rows; the median of the calls."""
    per_token_ms: float | None = None
    """The time from a token of all rows to the next, after the first; the median of the means."""
    item: str = "prompts"
    """The name of the items."""

    @property
    def items_per_second(self) -> float:
        """The prompts or pictures a second."""
        return self.num_items / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """The tokens a second of all rows; the time for the prompts counts, too."""
        return self.num_tokens / self.seconds

    def __str__(self) -> str:
        rows = [
            ("calls", f"{self.num_calls:,} (and {self.num_warmup_calls:,} to warm up)"),
            (self.item, f"{self.num_items:,}"),
            (f"{self.item}/s", f"{self.items_per_second:,.2f}"),
        ]
        if self.num_tokens:
            rows += [
                ("tokens", f"{self.num_tokens:,}"),
                ("tokens/s", f"{self.tokens_per_second:,.1f}"),
            ]
        if self.first_token_ms is not None:
            rows.append(("first token", f"{self.first_token_ms:,.2f} ms"))
        if self.per_token_ms is not None:
            rows.append(("each further token", f"{self.per_token_ms:,.2f} ms"))
        width = max(len(name) for name, _ in rows) + 2
        return "\n".join(f"{name:{width}}{value}" for name, value in rows)


@dataclass
class _Call:
    """One call that is measured."""

    num_items: int
    seconds: float = 0.0
    first_token_seconds: float | None = None
    num_tokens: int = 0
    num_steps: int = 0


class Stopwatch:
    """Measures calls of a generator of text or pictures.

    It waits for the device at the beginning and the end of a call, and after the first token.

    Args:
        device: The device on which the calls compute.
        num_warmup_calls: The number of first calls that do not count.
        item: The name of a call's items in the report: `"prompts"`, `"pictures"`.

    Raises:
        ValueError: `num_warmup_calls` is negative.
    """

    def __init__(
        self, device: torch.device | str, num_warmup_calls: int = 1, item: str = "prompts"
    ) -> None:
        if num_warmup_calls < 0:
            raise ValueError(f"num_warmup_calls must be at least 0, but is {num_warmup_calls}.")
        self._is_hpu = torch.device(device).type == "hpu"
        self._num_warmup_calls = num_warmup_calls
        self._item = item
        self._calls: list[_Call] = []
        self._current: _Call | None = None
        self._began = 0.0
        self._counted: list[int | Tensor] = []

    @contextmanager
    def call(self, num_items: int) -> Iterator[None]:
        """Measures a block; one that fails does not count.

        Args:
            num_items: The number of prompts or pictures, without those that only fill up a batch.

        Raises:
            RuntimeError: A call is being measured already.
        """
        if self._current is not None:
            raise RuntimeError("Stopwatch.call does not nest: end one call before another.")
        self._current, self._counted = _Call(num_items), []
        try:
            self._began = self._now()
            yield
            self._current.seconds = self._now() - self._began
            # After the clock, since the host waits to read a count that is on the device.
            self._current.num_tokens = sum(int(count) for count in self._counted)
            self._calls.append(self._current)
        finally:
            self._current = None

    @property
    def is_running(self) -> bool:
        """Whether a call is being measured."""
        return self._current is not None

    def first_token(self) -> None:
        """Notes the time at which all rows have their first token; waits for the device."""
        if self._current is not None:
            self._current.first_token_seconds = self._now() - self._began

    def tokens(self, num_tokens: int | Tensor, num_steps: int) -> None:
        """Counts the tokens that a call generates.

        Args:
            num_tokens: The tokens of all rows, up to each row's end; an integer of shape () on the
                device is read when the call has ended.
            num_steps: The tokens of the longest row.
        """
        if self._current is not None:
            self._counted.append(num_tokens)
            self._current.num_steps += num_steps

    def report(self) -> LatencyReport:
        """Returns the report on the calls after the warm-up.

        Raises:
            ValueError: There were none.
        """
        counted = self._calls[self._num_warmup_calls :]
        if not counted:
            raise ValueError(
                f"There were {len(self._calls)} calls, and the first {self._num_warmup_calls} warm "
                "up: nothing is left to report. Run more, or pass a smaller num_warmup_calls."
            )
        firsts = [c.first_token_seconds for c in counted if c.first_token_seconds is not None]
        further = [
            (call.seconds - call.first_token_seconds) / (call.num_steps - 1)
            for call in counted
            if call.first_token_seconds is not None and call.num_steps > 1
        ]
        return LatencyReport(
            num_calls=len(counted),
            num_warmup_calls=self._num_warmup_calls,
            seconds=sum(call.seconds for call in counted),
            num_items=sum(call.num_items for call in counted),
            num_tokens=sum(call.num_tokens for call in counted),
            first_token_ms=median(firsts) * 1e3 if firsts else None,
            per_token_ms=median(further) * 1e3 if further else None,
            item=self._item,
        )

    def _now(self) -> float:
        if self._is_hpu:
            vendor.synchronize()
        return time.perf_counter()
