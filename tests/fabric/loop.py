"""A training loop with Fabric, as a user's script has it."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NUM_FEATURES = 8
NUM_STEPS = 10
GLOBAL_BATCH_SIZE = 8
SEED = 3


def make_model(seed: int = SEED) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.GELU(), nn.Linear(16, 1))


def loader(num_ranks: int = 1, num_steps: int = NUM_STEPS) -> DataLoader[Any]:
    """All ranks' data, for Fabric to give each its part."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(GLOBAL_BATCH_SIZE * num_steps, NUM_FEATURES, generator=generator)
    return DataLoader(
        TensorDataset(features, features.sum(-1, keepdim=True)), GLOBAL_BATCH_SIZE // num_ranks
    )


def train(
    fabric: Fabric,
    model: nn.Module | None = None,
    *,
    num_steps: int = NUM_STEPS,
    accumulate: int = 1,
    max_norm: float | None = None,
) -> list[Tensor]:
    """Train on batches of the same eight samples, whatever the number of ranks.

    Args:
        fabric: Launched.
        model: Not yet set up; trained in place.
        num_steps: Batches, not steps of the optimizer.
        accumulate: Batches for each step of the optimizer.
        max_norm: Of the gradients.

    Returns:
        The losses, on their device.
    """
    model = make_model() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped, optimizer = fabric.setup(model, optimizer)
    data = fabric.setup_dataloaders(loader(fabric.world_size, num_steps))
    losses = []
    for step, (features, targets) in enumerate(data):
        is_last = (step + 1) % accumulate == 0
        with fabric.no_backward_sync(wrapped, enabled=not is_last):
            loss = nn.functional.mse_loss(wrapped(features), targets)
            fabric.backward(loss / accumulate)
        losses.append(loss.detach())
        if is_last:
            if max_norm is not None:
                fabric.clip_gradients(
                    wrapped, optimizer, max_norm=max_norm, error_if_nonfinite=False
                )
            optimizer.step()
            optimizer.zero_grad()
    return losses
