"""Simulated cards that are otherwise than the tables, by a seed: what `verify` is to find."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.measured_card import KIND, SCHEMA
from lightning_gaudi.simulator.measured import is_followed, memory_of
from lightning_gaudi.tools.verify.probes import PROBES, Probe, Signal, applies, mode_of

CARD, RELEASE = "gaudi2", "1.24.1"
FAULTS = {
    "raise": "hangs",
    "interrupt": "killed",
    "terminate": "hangs",
    "raise_of_one_rank": "hangs",
    "hang": "card not free",
}
IMPLIED = {
    "float64-overflows": "float64-demoted",
    "bincount-in-32-bits": "float64-demoted",
    "complex-stays-on-host": "complex-refused",
    "complex-views-refused": "complex-refused",
    "fft-refused": "complex-refused",
    "eigenvalues-refused": "complex-refused",
    "dynamic-shape": "unique-consecutive-on-cpu",
    "value-on-host": "item-waits",
    "grouped-mm-dynamic": "copy-to-host-waits",
    "grad-scaler-unscale-on-cpu": "grad-scaler-update-on-cpu",
}
"""Rules whose programs meet another one, too: a card without the first alone shows the same."""

_SIGNALS = (Signal.REFUSED, Signal.ON_CPU, Signal.WAITS, Signal.DEMOTED)
_CALLED_BY_OTHERS = set(IMPLIED.values())


def _ways(probe: Probe) -> tuple[str, ...]:
    """What a card may do instead of what a rule says, so that no other program meets it."""
    operator = probe.rule.operators[0]
    is_own = operator.startswith("aten::") and probe.rule.key not in _CALLED_BY_OTHERS
    if probe.signal is Signal.ON_CPU and is_own:
        return "none", "refused"
    is_copy = operator == "aten::copy_"
    if probe.signal is Signal.REFUSED and is_own and not is_copy and probe.rule.mode is None:
        return "none", "on_cpu"
    return ("none",)


def drawable() -> list[Probe]:
    """The rules that a simulated card can be changed in, and that a run on one shows."""
    return [
        probe
        for key, probe in PROBES.items()
        if applies(probe.rule, CARD, "1.24")
        and probe.signal in _SIGNALS
        and not probe.on_card_alone
        and is_followed(probe.rule)
        # The waits of the two are those of others, too.
        and key not in {*IMPLIED, "item-waits", "copy-to-host-waits"}
    ]


def draw(seed: int, number: int) -> dict[str, tuple[str, str]]:
    """By the key of a rule its mode, and what the changed card does instead."""
    chooser = random.Random(seed)
    changed = {}
    for probe in chooser.sample(drawable(), number):
        changed[probe.rule.key] = mode_of(probe.rule), chooser.choice(_ways(probe))
    return changed


def memory(seed: int) -> dict[str, int]:
    """Terms that are all other than the table's."""
    chooser = random.Random(seed)
    alignment = chooser.choice((64, 256, 512))
    terms = replace(
        memory_of(GAUDIS[CARD]),
        alignment_bytes=alignment,
        header_bytes=chooser.choice((64, 128, 192)),
        small_bytes=chooser.choice((64, 256, 384)),
        num_small=chooser.randrange(100, 5000),
        at_start_bytes=chooser.randrange(2**22, 2**24),
        limit_bytes=chooser.randrange(2**34, 2**36),
    )
    return asdict(terms)


def write(
    path: Path,
    rules: dict[str, tuple[str, str]],
    memory: dict[str, int] | None = None,
    faults: dict[str, str] | None = None,
    **others: Any,
) -> Path:
    """Writes a file of measurements that a simulated card follows."""
    values = {
        "kind": KIND,
        "schema": SCHEMA,
        "card": CARD,
        "release": RELEASE,
        "is_simulated": True,
        "rules": [{"key": k, "mode": m, "found": f} for k, (m, f) in rules.items()],
        "memory": memory,
        "faults": [{"key": key, "found": found} for key, found in (faults or {}).items()],
    } | others
    path.write_text(json.dumps(values))
    return path
