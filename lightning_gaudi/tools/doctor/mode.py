"""Checks whether the vendor's package loads, in which mode, and how many cards it sees.

A process of its own loads it, because a broken driver may hang or kill that process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_gaudi._core.decoding import decode
from lightning_gaudi.simulator import build, settings
from lightning_gaudi.simulator.settings import SimulatorError
from lightning_gaudi.tools.doctor import hl_smi, software
from lightning_gaudi.tools.doctor.findings import Finding, error, ok, warning
from lightning_gaudi.tools.doctor.machine import Machine, python
from lightning_gaudi.untrusted import parse_json, printable

_SOURCE = """
import json, sys
import torch
from lightning_gaudi import vendor
cards = vendor.device_count()
found = {"cards": cards, "reason": "" if cards else vendor.unavailable_reason()}
if cards:
    found["lazy"] = vendor.is_lazy()
print("\\n" + json.dumps(found))
"""
PROBE = (python(), "-c", _SOURCE)
_TIMEOUT_S = 120
_LAZY = "PT_HPU_LAZY_MODE"


def check_mode(machine: Machine) -> Iterator[Finding]:
    """Checks whether the vendor's package loads and sees the cards, and in which mode it runs."""
    if not _is_worth_asking(machine):
        return
    found, problem = _probe(machine)
    cards = hl_smi.read_cards(machine)
    if found is None or not found.cards:
        yield error(
            "hpu",
            f"accelerator='hpu' does not work here: {found.reason if found else problem}",
            "`python -c 'import habana_frameworks.torch'` shows where it fails; the findings above "
            "and below may say why.",
        )
        return
    mode = "lazy" if found.lazy else "eager"
    asked = machine.environment.get(_LAZY)
    how = f"{_LAZY}={asked}" if asked else "the release's default"
    yield ok("mode", f"{mode} ({how}); {found.cards} cards for torch")
    if cards and not software.is_simulated(machine) and found.cards != len(cards):
        yield warning(
            "hpu",
            f"torch sees {found.cards} cards, hl-smi {len(cards)}",
            "Start the container with HABANA_VISIBLE_DEVICES=all, and look at `hl-smi -L`.",
        )


def _is_worth_asking(machine: Machine) -> bool:
    """Returns whether the package is there and loads without compiling the simulator first."""
    if machine.version("torch") is None:
        return False
    if not software.is_simulated(machine):
        return machine.version(software.PLUGIN) is not None
    try:
        settings.read_settings()
        return build.find_built() is not None
    except SimulatorError:
        # `software.check_compiler` reports this.
        return False


@dataclass
class _Found:
    """What the process has found out."""

    cards: int
    reason: str
    """Why there is none."""
    lazy: bool


def _probe(machine: Machine) -> tuple[_Found | None, str]:
    answer = machine.run(*PROBE, timeout_s=_TIMEOUT_S)
    if answer.problem:
        return None, answer.problem
    try:
        # The last line alone: the vendor's libraries print to standard output, too.
        found = decode(_Found, {"lazy": False, **parse_json(answer.text.strip().splitlines()[-1])})
    except (ValueError, TypeError, IndexError):
        return None, f"an answer that is none: {printable(repr(answer.text.strip()[-200:]))}"
    return found, ""
