"""Checkpoints that name a function for `load_from_checkpoint` to call: CVE-2026-58659."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_a_checkpoint_has_nothing_called_but_lightning_cli(
    attack: Callable[[str], dict[str, Any]], measured: Callable[[str], None]
) -> None:
    found = attack("tests.faults.attack_instantiator")
    assert (found["executed"], found["imported"]) == (0, False)
    assert found["faults"] == []
    # Those before 2.6.6 have no list of their own, which no setting of ours would open.
    assert found["executed_if_trusted"] == int(found["is_oldest"])
    measured(
        f"Lightning {found['lightning']}, {found['mode']}: {found['files']} files: 0 called, "
        "LightningCLI's own loads"
    )
