"""What the tables say of a card: which probes it is to be given, and what each should find."""

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
        card: The generation's key; of one that is not known all rules are probed that name none.
        release: Major and minor number.
        mode: "eager" or "lazy".
        num_ranks: Processes that run the probe together.
        is_simulated: Whether the card is a simulated one, which cannot show all.
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
    """Returns one row of what the ranks have read: what the rule says, if any of them saw it.

    Args:
        key: The rule's.
        mode: "eager" or "lazy".
        rows: A reading of each rank.
        measured: What this package has of such a card that was measured before.
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
    """Returns what this package has of such a card; None where nobody has measured one."""
    return of_repository(card, release) if card in GAUDIS else None


def memory_terms(card: str, release: str) -> MemoryTerms | None:
    """Returns the terms of a card's memory as the tables have them; None of an unknown card."""
    before = measured_before(card, release)
    if before is not None and before.memory is not None:
        return before.memory
    return memory_of(GAUDIS[card]) if card in GAUDIS else None
