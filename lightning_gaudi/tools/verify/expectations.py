"""Reads from the tables which probes a card is given, and what each of them should find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.measured_card import MeasuredCard, MemoryTerms
from lightning_gaudi.simulator.measured import memory_of, of_repository
from lightning_gaudi.simulator.rules.table import RULES
from lightning_gaudi.tools.verify.probes import PROBES, REASONS, applies, mode_of


def keys_of(card: str, release: str, mode: str, num_ranks: int, *, is_simulated: bool) -> list[str]:
    """Returns the rules that are probed in one kind of process, in the order of the table.

    Args:
        card: The generation's key; on an unknown card, all rules that name no card are probed.
        release: Major and minor number.
        mode: "eager" or "lazy".
        num_ranks: The number of processes that run a probe together.
        is_simulated: Whether the card is simulated, which cannot show every rule.
    """
    return [
        key
        for key, probe in PROBES.items()
        if applies(probe.rule, card, release)
        and mode_of(probe.rule) == mode
        and probe.num_ranks == num_ranks
        and not (is_simulated and probe.on_card_alone)
    ]


def merged(
    key: str, mode: str, rows: Sequence[dict[str, Any]], measured: MeasuredCard | None
) -> dict[str, Any]:
    """Merges the readings of the ranks into a row, which is as the rule says if any rank saw that.

    Args:
        key: The rule's key.
        mode: "eager" or "lazy".
        rows: The readings, one of each rank.
        measured: The measurements that this package has of such a card.
    """
    said = PROBES[key].signal.value
    row = next((each for each in rows if each["found"] == said), rows[0])
    expected = (measured and measured.found(key, (mode,))) or said
    found = {"key": key, "mode": mode, "expected": expected, "found": row["found"]}
    return {**found, "detail": row["detail"]}


def counts() -> tuple[int, int, int]:
    """Returns the number of rules, of those with a probe, and of those with a reason instead."""
    return len(RULES), len(PROBES), len(REASONS)


def measured_before(card: str, release: str) -> MeasuredCard | None:
    """Returns the measurements that this package has of such a card; None if it has none."""
    return of_repository(card, release) if card in GAUDIS else None


def memory_terms(card: str, release: str) -> MemoryTerms | None:
    """Returns the terms of a card's memory from the tables; None for an unknown card."""
    before = measured_before(card, release)
    if before is not None and before.memory is not None:
        return before.memory
    return memory_of(GAUDIS[card]) if card in GAUDIS else None
