"""The rules of the card's, where a test does what a card would mind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.settings import read_rule_mode


@contextmanager
def silent_rules(needed: bool = True) -> Iterator[None]:
    """Nothing is refused or said in the block, unless it is not `needed`."""
    if needed:
        rules.set_mode("off")
    try:
        yield
    finally:
        rules.set_mode(read_rule_mode())
