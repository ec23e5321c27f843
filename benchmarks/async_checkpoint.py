"""How long training stands still for a checkpoint: written in the loop, and in the background.

The state is that of BERT base with AdamW in fp32, on the card; a step stands for training beside
the writer. How long reading takes with and without comparing checksums is measured first, as in a
process that resumes: what has saved before has freed memory, which then comes without faults, so
that plain reading takes half. The file is in the system's cache. TMPDIR says on which disk.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness.interleaved import Effort, elapsed, in_turns
from benchmarks.harness.rows import RATIO, Row, of_rounds, ratio, seconds
from lightning_gaudi import HPUCheckpointIO

NUM_ROUNDS, NUM_READS = 5, 9
STANDS_STILL_LIMIT, COMPARED_LIMIT = 0.25, 1.3
HIDDEN, LAYERS, VOCABULARY = 768, 12, 30522


def state() -> dict[str, Any]:
    """The weights of BERT base, about 110 million, and as many of each moment of AdamW's."""
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
    """Read in turns, then save in turns."""
    with tempfile.TemporaryDirectory() as folder:
        path, saved = Path(folder) / "x.ckpt", state()
        HPUCheckpointIO().save_checkpoint(saved, path)
        read = _read(path, effort.rounds(NUM_READS))
        return [*_saved(path, saved, effort.rounds(NUM_ROUNDS)), read]


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


def _read(path: Path, num_rounds: int) -> Row:
    sides = {"compared": HPUCheckpointIO(), "plain": HPUCheckpointIO(verify=False)}
    times = in_turns(
        tuple(sides),
        num_rounds,
        lambda name: elapsed(lambda: sides[name].load_checkpoint(path)),
    )
    name = "loading with checksums against loading without"
    return ratio(name, times["compared"], times["plain"], limit=COMPARED_LIMIT)
