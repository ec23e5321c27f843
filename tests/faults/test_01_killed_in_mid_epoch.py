"""SIGKILL at a step within an epoch; the run that resumes learns as one that never ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.resume_cases import kill_and_resume
from tests.helpers.ranks import call_forked


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "num_ranks", "num_seeds"),
    [
        ("auto", 1, 20),
        ("auto", 2, 20),
        ("auto", 4, 20),
        ("zero1", 2, 3),
        ("zero2", 2, 3),
        ("zero3", 2, 3),
        ("fsdp", 2, 3),
        ("fsdp2", 2, 3),
        ("fsdp2", 4, 2),
    ],
)
def test_every_later_loss_and_weight_is_the_same(
    kind: str, num_ranks: int, num_seeds: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    seeds = range(1, num_seeds + 1)
    call_forked(kill_and_resume, tmp_path, kind, num_ranks, seeds, timeout=850)
    losses = (tmp_path / "num_losses").read_text()
    measured(f"{kind}, {num_ranks} ranks: {num_seeds} kills, {losses} of {losses} losses equal")
