"""Ranks that use their HPUs before training: a data set on the device, or a sanity check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.tiny import NUM_FEATURES, TinyModule, batches, hpu_trainer
from tests.helpers.trainers import run_trainers


def _train(rank: int) -> dict[str, Any]:
    """Use the HPU, ask for cards that this cannot go on with, then for those that it can."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(16, NUM_FEATURES, device="hpu"))
    model = TinyModule().to("hpu")
    bound = os.environ.get("HLS_MODULE_ID")
    refused = []
    for start in (
        lambda: hpu_trainer(devices=[3, 4]).fit(TinyModule(), DataLoader(data)),
        lambda: Fabric(accelerator="hpu", devices=[3, 4]).launch(),
    ):
        with pytest.raises(MisconfigurationException) as raised:
            start()
        refused.append(str(raised.value))
    trainer = hpu_trainer(devices=2, max_epochs=1)
    trainer.fit(model, DataLoader(data, batch_size=4))
    del os.environ["HLS_MODULE_ID"]  # as where a test restores the environment
    hpu_trainer(devices=2).fit(TinyModule(), DataLoader(data, batch_size=4))
    return {
        "bound": bound,
        "refused": refused,
        "module": os.environ["HLS_MODULE_ID"],
        "steps": trainer.global_step,
        "weights": [weight.detach().cpu() for weight in model.parameters()],
    }


@pytest.mark.slow
def test_ranks_go_on_with_the_cards_they_have(tmp_path: Path) -> None:
    ranks = run_trainers(_train, tmp_path)
    for rank, found in enumerate(ranks):
        assert found["bound"] == found["module"] == str(rank)
        assert found["steps"] == 2
        for message in found["refused"]:
            assert f"Local rank {rank} is to drive module {3 + rank}, but has used its" in message
            assert f"was bound to module {rank} then. Use no hpu tensor before" in message
    torch.testing.assert_close(ranks[0]["weights"], ranks[1]["weights"], rtol=0, atol=0)


def test_ranks_are_not_spawned_by_a_process_that_holds_a_card() -> None:
    assert torch.ones(1, device="hpu").sum() == 1
    message = "one has used its HPU and holds it. Use no hpu tensor before Trainer.fit"
    trainer = hpu_trainer(strategy="ddp_spawn", devices=2)
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(TinyModule(), batches(1))
    with pytest.raises(MisconfigurationException, match=message):
        Fabric(accelerator="hpu", strategy="ddp_spawn", devices=2).launch(lambda fabric: None)
