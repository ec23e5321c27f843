"""Measures how long a checkpoint takes to load with and without comparing its checksums.

The state is that of `async_checkpoint`, BERT base with AdamW in fp32, as one file and in shards of
one rank. Each kind is loaded in a process of its own, like one that resumes. For "from disk", the
files are dropped from the system's cache before each loading; TMPDIR decides on which disk they
are. For "cached", they are in the cache, and loading only copies memory, so the ratio shows what
SHA-256 costs on these cores. The speed of SHA-256 is a row of its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.multiprocessing
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from benchmarks.async_checkpoint import HIDDEN, LAYERS, state
from benchmarks.harness.interleaved import Effort, elapsed, in_turns
from benchmarks.harness.rows import Row, of_rounds, ratio
from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.checkpoint.manifest import CHUNK_BYTES
from lightning_gaudi.fabric.strategies import HPUDeepSpeedStrategy, HPUModelParallelStrategy

NUM_ROUNDS = 9
LIMIT = 1.3
"""The largest ratio of the times of loading from disk with checksums and without."""
SMALL_BYTES = 2**20
"""Smaller files are left in the cache."""
COMPARED, PLAIN = "compared", "plain"

_Loads = dict[str, Callable[[], object]]
"""The calls that load a checkpoint with checksums and without."""


class Layer(nn.Module):
    """Has the weights of a layer of BERT base without its norms."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(4)))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.attention(hidden))))


def _file(path: Path) -> _Loads:
    HPUCheckpointIO().save_checkpoint(state(), path)
    sides = {COMPARED: HPUCheckpointIO(), PLAIN: HPUCheckpointIO(verify=False)}
    return {name: partial(io.load_checkpoint, path) for name, io in sides.items()}


def _shards(make_strategy: Callable[[str | None], Any], path: Path) -> _Loads:
    """Saves by one strategy; two that differ only in the checksums load into their own weights."""
    loads: _Loads = {}
    for name, reliability in ((COMPARED, None), (PLAIN, "verify_checkpoints=off")):
        fabric = Fabric(accelerator="hpu", devices=1, strategy=make_strategy(reliability))
        fabric.launch()
        net = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        if isinstance(fabric.strategy, HPUModelParallelStrategy):
            model: Any = fabric.setup_module(net)
            optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
        else:
            model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
        fabric.backward(model(torch.randn(2, HIDDEN, device="hpu")).float().square().mean())
        optimizer.step()
        parts = {"model": model, "optimizer": optimizer}
        if not path.exists():
            fabric.save(path, parts)
        loads[name] = partial(fabric.load, path, parts)
    return loads


def _parallelize(model: nn.Module, device_mesh: Any) -> nn.Module:
    for layer in model.children():
        fully_shard(layer, mesh=device_mesh["data_parallel"])
    return fully_shard(model, mesh=device_mesh["data_parallel"])


KINDS: dict[str, Callable[[Path], _Loads]] = {
    "a file": _file,
    "shards of FSDP2": partial(
        _shards,
        lambda reliability: HPUModelParallelStrategy(_parallelize, 1, 1, reliability=reliability),
    ),
    "shards of ZeRO-2": partial(
        _shards, lambda reliability: HPUDeepSpeedStrategy(stage=2, reliability=reliability)
    ),
}


def measure(effort: Effort) -> list[Row]:
    """Measures each kind in a process of its own."""
    rows = [row for kind in KINDS for row in _of_process(kind, effort.rounds(NUM_ROUNDS))]
    return [*rows, _speed_of_sha256(effort.rounds(NUM_ROUNDS))]


def _of_process(kind: str, num_rounds: int) -> list[Row]:
    context = torch.multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    process = context.Process(target=_run, args=(kind, num_rounds, found))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"loading {kind} ended with status {process.exitcode}")
    rows: list[Row] = found.get()
    return rows


def _run(kind: str, num_rounds: int, found: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.ckpt"
        loads = KINDS[kind](path)
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        files = [each for each in files if each.stat().st_size >= SMALL_BYTES]

        def load(name: str, *, from_disk: bool) -> float:
            for file in files if from_disk else ():
                _drop_from_cache(file)
            return elapsed(loads[name])

        rows = []
        for where, from_disk, limit in (("from disk", True, LIMIT), ("cached", False, None)):
            times = in_turns((COMPARED, PLAIN), num_rounds, partial(load, from_disk=from_disk))
            name = f"{kind}, {where}: loading with checksums against loading without"
            rows.append(ratio(name, times[COMPARED], times[PLAIN], limit=limit))
    found.put(rows)


def _drop_from_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        for _ in range(10):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if not _is_cached(descriptor):
                return
            time.sleep(0.1)  # pages that another core has just used are not dropped at once
    finally:
        os.close(descriptor)
    raise RuntimeError(f"{path} stays in memory. Set TMPDIR to a folder on a disk.")


def _is_cached(descriptor: int) -> bool:
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False  # it would have to be read from disk
    return True


def _speed_of_sha256(num_rounds: int) -> Row:
    data = os.urandom(CHUNK_BYTES)
    speeds = [
        len(data) * 400 / elapsed(lambda: [hashlib.sha256(data).digest() for _ in range(400)]) / 1e9
        for _ in range(num_rounds)
    ]
    cores = len(os.sched_getaffinity(0))
    detail = f"{cores} cores: {median(speeds) * cores:.1f} GB/s together, at most"
    return of_rounds("SHA-256 of chunks, a core", speeds, "GB/s", detail=detail)
