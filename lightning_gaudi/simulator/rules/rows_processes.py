"""Rules about what the process that holds a card must not do."""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

FORK = Rule(
    "fork-beside-card",
    Verdict.UNDEFINED,
    ("process::fork",),
    what="may hang or crash once the process that holds it is forked, as DataLoader workers are "
    "by default",
    instead="Leave multiprocessing_context out where Lightning takes the loader, and pass "
    "lightning_gaudi.data.worker_context(), 'forkserver' or 'spawn' elsewhere; or fork before the "
    "first use of the card.",
    source="Model-References torchvision/main.py; optimum-habana, pull request 1721 (with release "
    "1.17 and 1.19 workers hang or die; forked ones often work, too)",
)

ROWS: tuple[Rule, ...] = (FORK,)
"""The rules that are met by calls of the system and not by operators."""
