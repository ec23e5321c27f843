"""DDP of a model whose gradients fit one bucket: the values of torch's own way, in one launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi.simulator import launches
from lightning_gaudi.strategies import HPUDDPStrategy
from tests.helpers.tiny import QUIET, TinyModule, batches
from tests.helpers.trainers import run_trainers

SMALL = 0.0005
"""MiB: less than the model's gradients have."""
NUM_STEPS = 4


class Seen(TinyModule):
    """Keeps what hooks see of the gradients, and how many launches a step took."""

    def __init__(self, has_unused: bool = False) -> None:
        super().__init__(dropout=0.0)
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 1))
        if has_unused:
            self.unused = nn.Linear(8, 1)
        self.gradients: list[Tensor] = []
        self.num_launches: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.num_launches.append(launches())
        return super().training_step(batch, batch_idx)

    def on_after_backward(self) -> None:
        self.gradients.append(torch.cat([each.grad.flatten() for each in self.parameters()]))

    def kept(self) -> list[Tensor]:
        weights = torch.cat([each.detach().flatten() for each in self.parameters()])
        return [each.detach().cpu() for each in (*self.gradients, *self.losses, weights)]


def _fit(model: Seen, **settings: Any) -> Seen:
    ddp = {name: settings.pop(name) for name in ("bucket_cap_mb",) if name in settings}
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=HPUDDPStrategy(**ddp),
        max_epochs=1,
        gradient_clip_val=0.5,
        **settings,
        **QUIET,
    )
    trainer.fit(model, batches(2 * NUM_STEPS))
    return model


def _compare(rank: int) -> list[Any]:
    found = []
    for num_accumulated in (1, 2):
        once = _fit(Seen(), accumulate_grad_batches=num_accumulated)
        own = _fit(Seen(), accumulate_grad_batches=num_accumulated, bucket_cap_mb=SMALL)
        steps = [model.num_launches[-1] - model.num_launches[-2] for model in (once, own)]
        found.append((num_accumulated, once.kept(), own.kept(), steps))
    with pytest.raises(RuntimeError, match=r"unused\.weight, .*unused\.bias got no gradient"):
        _fit(Seen(has_unused=True))
    return found


def test_gradients_are_those_of_torchs_buckets_when_backward_returns(tmp_path: Path) -> None:
    ranks = run_trainers(_compare, tmp_path)
    for num_accumulated, once, own, steps in ranks[0]:
        for mine, theirs in zip(once, own, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        if num_accumulated == 1:
            # Ten weights: a copy each, or one, and a division.
            assert steps[0] == steps[1] - 10 + 2
    for first, second in zip(*ranks, strict=True):
        last = first[0] - 1  # of the batches of the first step: its gradients are averaged
        assert torch.equal(first[1][last], second[1][last])
        assert torch.equal(first[1][-1], second[1][-1])  # weights
