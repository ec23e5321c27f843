"""Clips gradients by their global norm, by one operator."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...._missing import missing
from ...core.step_closure import _mark_step_if_lazy


class FusedClipNorm:
    """Clips gradients by their global 2-norm without waiting for the device.

    Args:
        parameters: The parameters; the first one's dtype is that of the norm.
        max_norm: The largest norm.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        first = next(iter(parameters), None)
        self.dtype = torch.float32 if first is None else first.dtype
        self.max_norm_t = torch.tensor([float(max_norm)], dtype=self.dtype).to("hpu")
        self.norm_type = 2.0

    def clip_norm(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
        """Scales the gradients in place so that their norm is at most `max_norm`.

        Args:
            parameters: The parameters, or one.

        Returns:
            The norm before clipping: of shape (1,) on the device, or a zero on the CPU if there
            are no gradients.
        """
        _mark_step_if_lazy()
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return torch.tensor(0.0)
        # Made on the host and copied, as the vendor's does (1.19.0): the copy is counted.
        result = torch.zeros(1, dtype=self.dtype).to("hpu")
        with torch.no_grad():
            norm = torch.ops.hpu.fused_clip_norm(
                [*gradients, result], self.max_norm_t, self.norm_type
            )
        _mark_step_if_lazy()
        return norm


__getattr__ = missing(__name__)
