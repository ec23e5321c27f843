"""Data sets that draw as they are read, from the host's generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset


class Noisy(Dataset[Tensor]):
    """Samples with noise from all three generators of the host."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tensor:
        noise = random.random() + np.random.rand() + torch.rand(4)
        return torch.full((4,), index / 10) + noise / 10


class Stream(IterableDataset[Tensor]):
    """Counts what it gave, and may be told to go on from there."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.position = 0

    def __iter__(self) -> Any:
        while self.position < self.num_samples:
            self.position += 1
            yield torch.full((4,), self.position / 10) + torch.rand(4)
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
