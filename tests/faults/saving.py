"""Processes that save checkpoints of a kind until they are killed, and what is left of these."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightning_gaudi.checkpoint import candidates
from lightning_gaudi.checkpoint.folders import remove_at_once
from lightning_gaudi.checkpoint.io import HPUCheckpointIO
from lightning_gaudi.checkpoint.leftovers import sweep
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_checkpoint
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from lightning_gaudi.checkpoint.verify import check_folder
from lightning_gaudi.deepspeed.checkpoint.consolidate import extras
from lightning_gaudi.deepspeed.checkpoint.save import save as save_deepspeed
from lightning_gaudi.deepspeed.checkpoint.shards import find
from lightning_gaudi.deepspeed.checkpoint.versions import latest

NUM_FLOATS = 1 << 20


def rest(step: int) -> dict[str, Any]:
    """What a Trainer's checkpoint has beside the weights."""
    return {"loops": {}, "global_step": step, "pytorch-lightning_version": "2.6.6", "epoch": 0}


def save_whole(path: Path, step: int) -> None:
    """One file."""
    weights = torch.full((NUM_FLOATS,), float(step))
    HPUCheckpointIO().save_checkpoint(
        {**rest(step), "state_dict": {"weight": weights}, "optimizer_states": []}, path
    )


def load_whole(path: Path) -> int:
    """The step of a file, all of whose weights are of that step."""
    found = HPUCheckpointIO().load_checkpoint(path)
    return _checked(found["global_step"], found["state_dict"]["weight"])


def save_dcp(path: Path, step: int) -> None:
    """A folder of torch's shards."""
    weights = {f"w{number}": torch.full((NUM_FLOATS // 4,), float(step)) for number in range(4)}
    save_sharded(path, {"state_dict": weights}, rest(step))


def load_dcp(path: Path) -> int:
    """As `load_whole`."""
    found = load_full_checkpoint(path)
    return _checked(found["global_step"], torch.stack([*found["state_dict"].values()]))


class TorchCheckpointEngine:
    """Of DeepSpeed's it has the name alone: what writes is put in its place."""


class Engine:
    """What is asked of an engine of DeepSpeed's that saves, as a stage 2 of one rank answers.

    The engine itself takes seconds to start, and is saved by `test_deepspeed_checkpoints`.
    """

    def __init__(self, step: int) -> None:
        self.checkpoint_engine: Any = TorchCheckpointEngine()
        self.optimizer = None
        self._step = step

    def use_node_local_storage(self) -> bool:
        return False

    def zero_optimization_stage(self) -> int:
        return 2

    def _copy_recovery_script(self, folder: str) -> None:
        (Path(folder) / "zero_to_fp32.py").write_text("pass")

    def save_checkpoint(self, folder: str, tag: str, client_state: Any, **options: Any) -> None:
        weights = torch.full((NUM_FLOATS // 2,), float(self._step))
        model = {"module": {"w": weights}, "dp_world_size": 1, "param_shapes": [{}]}
        for name, state in (
            ("mp_rank_00_model_states.pt", {**model, **client_state}),
            ("zero_pp_rank_0_mp_rank_00_optim_states.pt", {"masters": weights.clone()}),
        ):
            self.checkpoint_engine.save(state, str(Path(folder) / tag / name))
        self._copy_recovery_script(folder)


def save_zero(path: Path, step: int) -> None:
    """A folder of DeepSpeed's, with versions."""
    save_deepspeed(Engine(step), path, rest(step), exclude_frozen=False)


def load_zero(path: Path) -> int:
    """As `load_whole`."""
    check_folder(path / latest(path))
    shards = find(path)
    weights = torch.load(shards.model_files[0], weights_only=False)["module"]["w"]
    masters = torch.load(shards.optimizer_files[0])["masters"]
    return _checked(extras(shards)["global_step"], torch.stack([weights, masters]))


def _checked(step: int, weights: torch.Tensor) -> int:
    assert torch.equal(weights, torch.full_like(weights, float(step)))
    return step


Save = Callable[[Path, int], None]
Load = Callable[[Path], int]
KINDS: dict[str, tuple[Save, Load]] = {
    "whole": (save_whole, load_whole),
    "DCP": (save_dcp, load_dcp),
    "DeepSpeed": (save_zero, load_zero),
}


def _go_on(folder: Path, kind: str, has_saved: Any) -> None:
    """As a fit that starts again: sweep, go on from the newest, keep the last two and `last`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's DCP, that there is one rank
    save, _ = KINDS[kind]
    sweep(folder)
    assert not list(folder.glob(".saving-*"))
    found = candidates.candidates([folder])
    first = (found[0].age[1] if found else 0) + 1
    for step in itertools.count(first):
        save(folder / f"step={step}.ckpt", step)
        has_saved.set()
        save(folder / "last.ckpt", step)
        older = folder / f"step={step - 2}.ckpt"
        if older.exists():
            remove_at_once(older)


def kill_savers(home: Path, kind: str, num_kills: int) -> None:
    """Kill processes that save, each at random, and look at what each has left.

    Writes to `result` how many left litter, how many checkpoints were loaded, and the last step.
    """
    folder = home / "saved"
    folder.mkdir()
    context, rng = multiprocessing.get_context("fork"), random.Random(num_kills)
    torch.set_num_threads(1)
    _, load = KINDS[kind]
    littered = loaded = newest_step = 0
    for _ in range(num_kills):
        has_saved = context.Event()
        process = context.Process(target=_go_on, args=(folder, kind, has_saved))
        process.start()
        assert has_saved.wait(120), process.exitcode
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.join()
        littered += bool(list(folder.glob(".saving-*")))
        steps = [
            load(path) for path in folder.iterdir() if path.suffix == ".ckpt" and _is_all(path)
        ]
        loaded += len(steps)
        assert max(steps) > newest_step  # one more was saved, at least
        newest_step = load(candidates.candidates([folder])[0].path)
        assert newest_step == max(steps)
    sweep(folder)
    assert {each.suffix for each in folder.iterdir()} == {".ckpt"}
    assert all(load(each) for each in folder.iterdir())
    (home / "result").write_text(f"{littered} {loaded} {newest_step}")


def _is_all(path: Path) -> bool:
    """Whether it is no folder of DeepSpeed's whose first version was never published."""
    return path.is_file() or any((path / name).is_file() for name in ("latest", ".metadata"))
