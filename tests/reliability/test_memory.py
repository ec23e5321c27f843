"""What holds a card's memory, by category."""

from __future__ import annotations

import torch
from torch import nn

from lightning_gaudi.reliability import memory


def test_bytes_are_told_by_category_and_what_is_shared_once() -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)).to("hpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8, device="hpu")).sum().backward()
    optimizer.step()
    weights = (8 * 4 + 4 + 4) * 4
    sizes = memory.by_category(nn.ModuleList([model, *model]), [optimizer])
    assert sizes["weights"] == weights + 2 * 4 * 4 + 8  # running statistics, and their count
    assert sizes["gradients"] == weights
    assert sizes["optimizer state"] == 2 * weights
    assert sizes["communication buckets"] == 0
