"""Checkpoints that name a function for `load_from_checkpoint` to call: CVE-2026-58659."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.attack_programs import OLDEST, attack, oldest_lightning

__all__ = ["oldest_lightning"]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("version", ["installed", OLDEST])
def test_a_checkpoint_has_nothing_called_but_lightning_cli(
    version: str,
    mode: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    measured: Callable[[str], None],
) -> None:
    lightning = request.getfixturevalue("oldest_lightning") if version == OLDEST else None
    found = attack("tests.faults.attack_instantiator", tmp_path, mode, lightning)
    assert found["is_lazy"] == (mode == "lazy")
    assert version in ("installed", found["lightning"])
    assert (found["executed"], found["imported"]) == (0, False)
    assert found["faults"] == []
    # Those before 2.6.6 have no list of their own, which no setting of ours would open.
    assert found["executed_if_trusted"] == int(version == OLDEST)
    measured(
        f"Lightning {found['lightning']}, {mode}: {found['files']} files: 0 called, "
        "LightningCLI's own loads"
    )
