"""Measures how long training waits for a checkpoint that is saved in the loop or in the background.

The state is that of BERT base with AdamW in fp32, on the card. Small training steps beside the
writer show how much it slows them down. TMPDIR decides on which disk the checkpoint is.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness.interleaved import Effort, elapsed
from benchmarks.harness.rows import RATIO, Row, of_rounds, ratio, seconds
from lightning_gaudi import HPUCheckpointIO

NUM_ROUNDS = 5
STANDS_STILL_LIMIT = 0.25
HIDDEN, LAYERS, VOCABULARY = 768, 12, 30522


def state() -> dict[str, Any]:
    """Returns weights of the sizes of BERT base, about 110 million, and AdamW's two moments."""
    sizes = {"embeddings": (VOCABULARY + 514, HIDDEN)}
    for layer in range(LAYERS):
        sizes |= {f"{layer}.attention.{name}": (HIDDEN, HIDDEN) for name in "qkvo"}
        sizes |= {f"{layer}.up": (4 * HIDDEN, HIDDEN), f"{layer}.down": (HIDDEN, 4 * HIDDEN)}
    made = [
        {name: torch.randn(size, device="hpu") for name, size in sizes.items()} for _ in range(3)
    ]
    moments = {
        number: {"exp_avg": first, "exp_avg_sq": second}
        for number, (first, second) in enumerate(
            zip(made[1].values(), made[2].values(), strict=True)
        )
    }
    return {"state_dict": made[0], "optimizer_states": [{"state": moments}], "loops": {}}


def measure(effort: Effort) -> list[Row]:
    """Saves in both ways in turns."""
    with tempfile.TemporaryDirectory() as folder:
        return _saved(Path(folder) / "x.ckpt", state(), effort.rounds(NUM_ROUNDS))


def _saved(path: Path, saved: dict[str, Any], num_rounds: int) -> list[Row]:
    layer = torch.nn.Linear(HIDDEN, HIDDEN, device="hpu")
    batch = torch.randn(256, HIDDEN, device="hpu")

    def step() -> None:
        layer(batch).sum().backward()
        torch.hpu.synchronize()

    step()
    alone = median(elapsed(step) for _ in range(50))
    io, writer = HPUCheckpointIO(), HPUCheckpointIO()
    whole, still, slower = [], [], []
    writer.start_background()
    first = elapsed(lambda: writer.save_checkpoint(saved, path))
    for _ in range(num_rounds):
        while not writer.is_idle:
            time.sleep(0.1)
        whole.append(elapsed(lambda: io.save_checkpoint(saved, path)))
        still.append(elapsed(lambda: writer.save_checkpoint(saved, path)))
        beside = []
        while not writer.is_idle:
            beside.append(elapsed(step))
        slower.append(sum(beside) - alone * len(beside))
    writer.stop_background()
    saves = f"of {seconds(median(whole))}, {path.stat().st_size / 2**30:.2f} GiB"
    steps = [lost / took for lost, took in zip(slower, whole, strict=True)]
    return [
        ratio(
            "async_save: the loop stands still, share of saving in it",
            *(still, whole),
            limit=STANDS_STILL_LIMIT,
        ),
        Row("the same, the first time", first / median(whole), RATIO, detail=saves),
        of_rounds("what steps lose meanwhile, share of saving in the loop", steps, RATIO),
    ]
