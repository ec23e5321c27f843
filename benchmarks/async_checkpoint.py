"""How long training stands still for a checkpoint: written in the loop, and in the background.

Run with `lightning-gaudi simulate --cards 1 -- python benchmarks/async_checkpoint.py [FOLDER]`. The
state is that of BERT base with AdamW in fp32, on the card; a step stands for training beside the
writer. How long reading takes with and without comparing checksums comes last; the file is in the
system's cache then, so that what is compared with takes as little as it can.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

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


def seconds(do: Callable[[], Any]) -> float:
    """How long something takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def main() -> int:
    """Measure, print a table, and return 1 if a figure misses its limit."""
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    path, saved = folder / "x.ckpt", state()
    layer = torch.nn.Linear(HIDDEN, HIDDEN, device="hpu")
    batch = torch.randn(256, HIDDEN, device="hpu")

    def step() -> None:
        layer(batch).sum().backward()
        torch.hpu.synchronize()

    step()
    alone = median(seconds(step) for _ in range(50))
    io, writer = HPUCheckpointIO(), HPUCheckpointIO()
    whole, still, slower = [], [], []
    writer.start_background()
    first = seconds(lambda: writer.save_checkpoint(saved, path))
    for _ in range(NUM_ROUNDS):
        while not writer.is_idle:
            time.sleep(0.1)
        whole.append(seconds(lambda: io.save_checkpoint(saved, path)))
        still.append(seconds(lambda: writer.save_checkpoint(saved, path)))
        beside = []
        while not writer.is_idle:
            beside.append(seconds(step))
        slower.append(sum(beside) - alone * len(beside))
    writer.stop_background()
    plain = HPUCheckpointIO(verify=False)
    reads: dict[HPUCheckpointIO, list[float]] = {plain: [], io: []}
    for index in range(NUM_READS):
        for each in (plain, io) if index % 2 else (io, plain):
            reads[each].append(seconds(partial(each.load_checkpoint, path)))
    unverified, verified = median(reads[plain]), median(reads[io])
    compared = median(mine / theirs for mine, theirs in zip(reads[io], reads[plain], strict=True))
    gib = path.stat().st_size / 2**30
    print(f"checkpoint                      {gib:6.2f} GiB, medians of {NUM_ROUNDS}")
    print(f"saved in the loop               {median(whole):6.2f} s")
    print(f"saved beside it, the first time {first:6.2f} s  {_share([first], whole)}")
    print(f"saved beside it, stands still   {median(still):6.2f} s  {_share(still, whole)}")
    print(f"steps meanwhile, slower by      {median(slower):6.2f} s  {_share(slower, whole)}")
    print(f"read                            {unverified:6.2f} s")
    print(f"read and compared               {verified:6.2f} s  x{compared:.2f}")
    path.unlink()
    folder.rmdir()
    stands_still = median(still) / median(whole)
    return int(stands_still > STANDS_STILL_LIMIT or compared > COMPARED_LIMIT)


def _share(part: list[float], whole: list[float]) -> str:
    return f"{median(part) / median(whole):.0%}"


if __name__ == "__main__":
    sys.exit(main())
