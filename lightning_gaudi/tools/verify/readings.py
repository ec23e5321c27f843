"""Runs one probe, and reads from torch and the vendor's metrics what the card shows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils import _pytree

from lightning_gaudi._core import vendor
from lightning_gaudi.simulator import acting, is_active
from lightning_gaudi.tools.verify.probes import Probe, Signal
from lightning_gaudi.tools.verify.programs.values import kept, uniform
from lightning_gaudi.untrusted import hide_secrets, printable

CPU = torch.device("cpu")
_QUEUED_S = 0.05
"""How many seconds the work that is queued before a call should take.

It is far longer than a call, and far shorter than a graph's compilation, which is over by then."""

UNKNOWN = "unknown"
"""The finding where a card cannot be read; it is not written to the file."""


class Reading(NamedTuple):
    """Says what a card has shown."""

    found: str
    """The rule's signal if the card has shown it; else another signal, or "none"."""
    detail: str = ""


def read(probe: Probe, device: torch.device) -> Reading:
    """Runs a probe's program, and returns what the card has shown."""
    with warnings.catch_warnings(), _acted(probe):
        warnings.simplefilter("ignore")
        before = _fallbacks(), _waits()
        try:
            result = probe.program(device)
            # Counted before anything is looked at, since the host waits for that.
            ops, waits = _since(before[0], _fallbacks()), _waits()
            tensors = _tensors(result)  # where an asynchronous device raises
        except Exception as error:
            # Any type, since the vendor chooses it.
            return Reading(Signal.REFUSED.value, _said(error))
        fallback = next((op for op in ops if _is_of(op, probe)), "")
        if fallback and probe.signal is not Signal.WAITS:
            return Reading(Signal.ON_CPU.value, fallback)
        if probe.signal is Signal.WAITS:
            has_waited = _has_waited(probe, device) if waits is None else waits != before[1]
            if has_waited is None:
                return Reading(UNKNOWN, "every call seems to wait, so that nothing can be told")
            return Reading(Signal.WAITS.value if has_waited else "none")
        if probe.signal is Signal.AS_SAID:
            return Reading(Signal.AS_SAID.value if result else "none")
        if probe.signal is Signal.DEMOTED:
            return _compared(probe, tensors)
        return Reading("none")


def _acted(probe: Probe) -> AbstractContextManager[object]:
    """Lets a simulated card change the numbers that it otherwise only warns of."""
    shows_numbers = probe.signal in (Signal.DEMOTED, Signal.AS_SAID)
    return acting.acted() if shows_numbers and is_active() else nullcontext()


def _said(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return printable(hide_secrets(f"{type(error).__name__}: {first}"), max_chars=200)


def _fallbacks() -> dict[str, int]:
    stats = vendor.metric("cpu_fallback") or {}
    named = stats.get("FallbackOps")
    return dict(named) if isinstance(named, dict) else {"": int(stats.get("TotalNumber", 0))}


def _since(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [name for name, count in after.items() if count > before.get(name, 0)]


def _is_of(operator: str, probe: Probe) -> bool:
    """Returns whether an operator that fell back belongs to the rule; one without a name may."""
    name = operator.rpartition("::")[2].partition(".")[0]
    names = {each.rpartition("::")[2].partition(".")[0] for each in probe.rule.operators}
    return not name or name in names


def _waits() -> int | None:
    """Returns how often the host has waited; None on a real device, which does not count that."""
    stats = vendor.metric("host_sync")
    return None if stats is None else int(stats["TotalNumber"])


def _tensors(result: object) -> list[torch.Tensor]:
    found = [each for each in _pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    return [each.detach().cpu() for each in found]


def _compared(probe: Probe, tensors: list[torch.Tensor]) -> Reading:
    if probe.expects is not None:
        expected = [probe.expects(dist.get_world_size())]
    else:
        expected = _tensors(probe.program(CPU))
    for found, reference in zip(tensors, expected, strict=True):
        if found.shape != reference.shape or not torch.equal(found, reference.to(found.dtype)):
            return Reading(Signal.DEMOTED.value, _shown(found, reference))
    return Reading("none")


def _shown(found: torch.Tensor, reference: torch.Tensor) -> str:
    pair = [str(each.flatten()[:2].tolist()) for each in (found, reference)]
    return printable(f"{pair[0]}, on a CPU {pair[1]}", max_chars=200)


def _has_waited(probe: Probe, device: torch.device) -> bool | None:
    """Returns whether a call comes back only after the work that was queued before it.

    It returns None if this cannot be seen, since a call that needs nothing of the card seems to
    wait, too.
    """
    queue = _Queue(device)

    def is_seen_to_wait(program: Callable[[torch.device], object]) -> bool:
        program(device)  # so that its tensors are on the card, and its graphs are compiled
        return is_behind(queue.add, lambda: program(device), vendor.synchronize)

    with kept():
        if is_seen_to_wait(lambda device: uniform(8, device=device) + 1):
            return None
        return is_seen_to_wait(probe.program)


def is_behind(
    add: Callable[[], None],
    call: Callable[[], object],
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Returns whether a call waits for work that was queued before it.

    Args:
        add: Queues work, and returns at once.
        call: The call, which was made before, so that nothing of it is compiled.
        synchronize: Waits for all work.
        clock: Returns seconds.
    """
    synchronize()
    add()
    started = clock()
    call()
    returned = clock()
    synchronize()
    ended = clock()
    # A call that waits leaves no work for `synchronize`; one that does not leaves nearly all.
    return returned - started > ended - returned


class _Queue:
    """Queues work that keeps a device busy for as long as is wanted."""

    def __init__(self, device: torch.device) -> None:
        self._matrix = torch.ones(4096, 4096, dtype=torch.bfloat16).to(device)
        self._number = 1
        self.add()
        while self._seconds() < _QUEUED_S and self._number < 2**14:
            self._number *= 2

    def _seconds(self) -> float:
        vendor.synchronize()
        started = time.perf_counter()
        self.add()
        vendor.synchronize()
        return time.perf_counter() - started

    def add(self) -> None:
        """Queues enough products to keep the device busy for `_QUEUED_S`."""
        product = self._matrix
        for _ in range(self._number):
            product = torch.mm(self._matrix, product)
        vendor.end_graph()
