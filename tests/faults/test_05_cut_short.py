"""A checkpoint of which an end is missing is named with both lengths, and another is taken."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_gaudi.checkpoint.candidates import candidates, fallbacks
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from tests.faults.saving import KINDS
from tests.helpers.tiny import TinyModule, batches, hpu_trainer

NUM_CUTS = 20

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", KINDS)
def test_cut_is_named_and_the_one_before_is_taken(
    tmp_path: Path, measured: Callable[[str], None], kind: str
) -> None:
    save, load = KINDS[kind]
    first, second = tmp_path / "step=1.ckpt", tmp_path / "step=2.ckpt"
    save(first, 1)
    save(second, 2)
    assert candidates([tmp_path])[0].path == second
    parts = [each for each in [second, *second.rglob("*")] if each.is_file()]
    parts = [
        each for each in parts if each.suffix not in (".py", ".json") and each.name != "latest"
    ]
    rng = random.Random(5)
    for _ in range(NUM_CUTS):
        path = rng.choice(parts)
        whole = path.read_bytes()
        length = rng.randrange(len(whole))
        os.truncate(path, length)
        with pytest.raises(DamagedCheckpointError) as raised:
            load(second)
        message = str(raised.value)
        assert path.name in message
        assert re.search(rf"\b{length:,} bytes", message), message
        assert length < 58 or f"of {len(whole):,}" in message, message
        assert fallbacks(second) == [first]
        path.write_bytes(whole)
    assert candidates([tmp_path])[0].path == second
    assert load(second) == 2
    measured(f"{kind}: {NUM_CUTS} of {NUM_CUTS} rejected with both lengths, the one before taken")


def test_fit_goes_on_from_the_one_before(tmp_path: Path, measured: Callable[[str], None]) -> None:
    def fit(folder: Path, max_steps: int, ckpt_path: str | None = None) -> int:
        model = TinyModule()
        keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = hpu_trainer(max_steps=max_steps, callbacks=[keep], enable_checkpointing=True)
        trainer.fit(model, batches(3), ckpt_path=ckpt_path)
        return len(model.losses)

    saved, rng = tmp_path / "saved", random.Random(6)
    fit(saved, 2)
    for number in range(NUM_CUTS):
        folder = Path(shutil.copytree(saved, tmp_path / str(number)))
        path = folder / "step=2.ckpt"
        os.truncate(path, rng.randrange(path.stat().st_size))
        with pytest.warns(
            UserWarning, match=r"step=2\.ckpt is cut short[^\0]*step=1\.ckpt instead"
        ):
            assert fit(folder, 3, rng.choice(["last", str(path)])) == 2
    measured(f"{NUM_CUTS} of {NUM_CUTS} fits went on from the one before, with a warning of both")
