"""`Trainer(devices=2)` against one process on the CPU that sees the whole batch.

2e-3 after ten steps is for real silicon: it sums products in another order than the CPU and may
hold fewer bits of them. The ranks among themselves are equal to the bit: they add the same sums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from tests.helpers.tiny import QUIET, TinyModule, batches

from .collectives import CHECKS, expect_success, read_results
from .fit import BATCH_SIZE, NUM_STEPS, seeded
from .torchrun import need_cards, run

pytestmark = pytest.mark.slow

NUM_RANKS = 2
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_cards(NUM_RANKS)
    folder = tmp_path_factory.mktemp("fit")
    run("-m", "tests.contract.several_cards.fit", folder, NUM_RANKS)
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Seen:
    return [torch.load(folder / f"rank{i}.pt", weights_only=True) for i in range(NUM_RANKS)]


def test_ranks_have_a_card_each_and_half_of_the_data(ranks: Seen) -> None:
    assert len({seen["module_id"] for seen in ranks}) == NUM_RANKS
    for seen in ranks:
        assert seen["device"] == "hpu:0"
        assert seen["strategy"] == "HPUDDPStrategy"
        assert seen["world_size"] == NUM_RANKS
        assert seen["num_losses"] == 2 * NUM_STEPS


def test_weights_are_equal_between_ranks(ranks: Seen) -> None:
    for first, second in zip(ranks[0]["weights"], ranks[1]["weights"], strict=True):
        assert torch.equal(first, second)


def test_weights_are_those_of_one_process_on_the_whole_batch(ranks: Seen, tmp_path: Path) -> None:
    module = seeded(TinyModule)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    trainer = pl.Trainer(accelerator="cpu", max_steps=NUM_STEPS, default_root_dir=tmp_path, **QUIET)
    trainer.fit(module, batches(NUM_STEPS, 2 * NUM_RANKS * BATCH_SIZE))
    expected = [parameter.detach() for parameter in module.parameters()]
    torch.testing.assert_close(ranks[0]["weights"], expected, rtol=2e-3, atol=2e-3)
    moved = max((a - b).abs().max() for a, b in zip(expected, before, strict=True))
    assert moved > 0.02, "the weights moved too little for the comparison to say anything"


def test_the_one_checkpoint_holds_the_weights(folder: Path, ranks: Seen) -> None:
    saved = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"].values()
    assert {tensor.device.type for tensor in saved} == {"cpu"}
    for ours, theirs in zip(saved, ranks[0]["weights"], strict=True):
        assert torch.equal(ours, theirs)


def test_looking_for_cards_names_no_meeting_point(ranks: Seen) -> None:
    """The vendor's import names localhost:12345, where two jobs of a server would meet."""
    assert ranks[0]["meeting_port"] is None


@pytest.mark.parametrize("name", CHECKS)
def test_collective(name: str, folder: Path) -> None:
    expect_success(name, read_results(folder, NUM_RANKS))
