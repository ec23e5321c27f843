"""One wrong bit anywhere in a checkpoint is found before any of it is used."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_gaudi.checkpoint.candidates import fallbacks
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.files import open_mapped
from tests.faults.saving import KINDS

NUM_FLIPS = 50

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", KINDS)
def test_flip_is_found(tmp_path: Path, measured: Callable[[str], None], kind: str) -> None:
    save, load = KINDS[kind]
    first, second = tmp_path / "step=1.ckpt", tmp_path / "step=2.ckpt"
    save(first, 1)
    save(second, 2)
    rng = random.Random(6)
    parts = [each for each in [second, *second.rglob("*")] if each.is_file()]
    parts = [each for each in parts if each.suffix != ".py" and each.name != "latest"]
    large = max(parts, key=lambda each: each.stat().st_size)
    for number in range(NUM_FLIPS):
        path = large if number % 2 else rng.choice(parts)  # in tensors, or anywhere
        data = bytearray(path.read_bytes())
        position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[position] ^= bit
        path.write_bytes(data)
        with pytest.raises(DamagedCheckpointError, match=path.name):
            load(second)
        if kind == "whole":
            with pytest.raises(DamagedCheckpointError, match=path.name):
                open_mapped(second, weights_only=True)
        if number % 10 == 0:
            assert fallbacks(second) == [first]
        data[position] ^= bit
        path.write_bytes(data)
    assert load(second) == 2
    measured(f"{kind}: {NUM_FLIPS} of {NUM_FLIPS} found")
