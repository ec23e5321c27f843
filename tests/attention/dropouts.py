"""What the fused kernel's dropout left out, and a reference that leaves out the same."""

import torch
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi.attention import kernel


def record(monkeypatch):
    """Have each call of the kernel say which weights it keeps.

    With unit vectors for values its output are the weights after dropout.

    Returns:
        A list that fills, for each call (B, H, T, S) of booleans on the CPU.
    """
    kept, theirs = [], kernel._kernel()

    class Recorder:
        @staticmethod
        def apply(query, key, value, *settings):
            state = torch.hpu.get_rng_state()
            units = torch.eye(key.shape[-2], device=key.device).expand(*key.shape[:-1], -1)
            with torch.no_grad():
                kept.append(theirs.apply(query, key, units, *settings).cpu() > 0)
            torch.hpu.set_rng_state(state)
            return theirs.apply(query, key, value, *settings)

    monkeypatch.setattr(kernel, "_kernel", lambda: Recorder)
    return kept


def repeat(monkeypatch, kept):
    """Have `F.dropout` keep what is in the list, one entry a call, and nothing at random."""

    def dropout(weights, p=0.5, training=True, inplace=False):
        if not (training and p):
            return weights
        return weights * kept.pop(0) / (1 - p)

    monkeypatch.setattr(F, "dropout", dropout)
