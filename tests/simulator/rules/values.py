"""Tensors for the provocations: made on the CPU from one seed, then moved."""

from __future__ import annotations

import torch


def uniform(*shape: int, device: torch.device) -> torch.Tensor:
    """float32 values in [0, 1), the same on every call."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device)


def positive(*shape: int, device: torch.device) -> torch.Tensor:
    """float32 values in [1, 2)."""
    return uniform(*shape, device=device) + 1


def symmetric(size: int, *, device: torch.device) -> torch.Tensor:
    """A positive definite matrix of float32."""
    root = uniform(size, size, device=device)
    return root @ root.T + torch.eye(size).to(device)


def on(device: torch.device, values: list) -> torch.Tensor:
    """What `torch.tensor` makes of `values`, on `device`."""
    return torch.tensor(values).to(device)
