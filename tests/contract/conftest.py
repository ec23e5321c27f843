"""What the contract needs before its first test: a card, simulated or real.

One process drives one card. The tests of `several_cards` start a process for each rank, and those
of `other_trainers` one for each script, so they run first, while this process has not acquired a
card that a rank may want.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lightning_gaudi._core import vendor

FOLDER = Path(__file__).parent
ONE_CARD = FOLDER / "one_card"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [i for i, item in enumerate(items) if FOLDER in item.path.parents]
    ours = sorted((items[i] for i in places), key=lambda item: ONE_CARD in item.path.parents)
    for i, item in zip(places, ours, strict=True):
        items[i] = item


def pytest_configure(config: pytest.Config) -> None:
    if not vendor.is_available():
        pytest.exit(f"no Gaudi here: {vendor.unavailable_reason()}", returncode=2)


@pytest.fixture(autouse=True)
def _restored_generators() -> Iterator[None]:
    """Each test leaves the CPU's generator as it was; the device's is seeded where it matters."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
