"""Random states of the host, in a checkpoint and back."""

from __future__ import annotations

from pathlib import Path

import torch

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi._core import host_random


def test_a_checkpoint_holds_equal_states_once(tmp_path: Path) -> None:
    before = host_random.take()
    first = host_random.to_tensors(before)
    torch.rand(1)
    second = host_random.to_tensors(host_random.take())
    io, num_bytes = HPUCheckpointIO(), []
    for name, states in (("one", [first]), ("both", [first, second])):
        io.save_checkpoint({"states": states}, tmp_path / name)
        num_bytes.append((tmp_path / name).stat().st_size)
    assert num_bytes[1] - num_bytes[0] < 1.3 * first["torch"].numel()  # and not that of the others
    found = io.load_checkpoint(tmp_path / "both")["states"]
    drawn = []
    for states in found:
        host_random.put(host_random.from_tensors(states))
        drawn.append(torch.rand(2).tolist())
    assert drawn[0][1] == drawn[1][0]
    assert host_random.from_tensors(found[0]) == before
