"""DeepSpeed's checkpoints and files of safetensors."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lightning_gaudi.checkpoint.errors import DamagedCheckpointError, UntrustedCheckpointError
from lightning_gaudi.inference import checkpoint_files

from . import wild
from .target import Parser, WrongResultError, target
from .targets_checkpoints import _record, _sign, is_equal

_PACKAGE = "lightning_gaudi.deepspeed.checkpoint"
_MODEL = "mp_rank_00_model_states.pt"
_OPTIMIZER = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@target(
    "inference.safetensors",
    "lightning_gaudi.inference.checkpoint_files:_index",
    "lightning_gaudi.inference.checkpoint_files:_opened",
    errors=(ValueError,),
)
def _safetensors(folder: Path) -> Parser:
    """A file whose header, or an index whose names, are wrong; nothing outside is opened."""
    model, single, index = folder / "model", "model.safetensors", "model.safetensors.index.json"
    model.mkdir()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2).bfloat16()}
    save_file(tensors, folder / "outside.safetensors")
    save_file(tensors, model / single)
    seed = (model / single).read_bytes()
    size = struct.unpack("<Q", seed[:8])[0]
    header, content = json.loads(seed[8 : 8 + size]), seed[8 + size :]
    named = {"metadata": {"total_size": 28}, "weight_map": {"a": single, "b": single}}

    def damage(random: Any) -> tuple[bytes, bytes | None]:
        how = random.randrange(5)
        if how == 0:
            return wild.damaged_bytes(random, seed), None
        if how < 3:
            text = wild.json_text(random, header)
            length = random.choice((len(text), len(text), len(text), 2**40, 0, len(text) + 1))
            return struct.pack("<Q", length) + text + content, None
        names = json.loads(json.dumps(named))
        if how == 3:
            wrong = random.choice(("../outside.safetensors", str(folder / "outside.safetensors")))
            names["weight_map"]["a"] = wrong
            return seed, json.dumps(names).encode()
        return seed, wild.json_text(random, names)

    def parse(given: tuple[bytes, bytes | None]) -> Any:
        (model / single).write_bytes(given[0])
        (model / index).unlink(missing_ok=True)
        if given[1] is not None:
            (model / index).write_bytes(given[1])
        found = checkpoint_files.read_headers(model)
        for stored in found.values():
            if stored.path.resolve().parent != model.resolve():
                raise WrongResultError(f"{stored.path} is outside the folder")
        return {name: checkpoint_files.read_tensor(stored) for name, stored in found.items()}

    return Parser(damage, parse)


def _states(stage: int) -> dict[str, dict[str, Any]]:
    """The files of two ranks, as DeepSpeed 0.19 has them."""
    module = {"w": torch.arange(4.0).reshape(2, 2).bfloat16(), "b": torch.ones(2).bfloat16()}
    shapes = [OrderedDict(w=torch.Size([2, 2]), b=torch.Size([2]))]
    model = {
        "module": module,
        "buffer_names": [],
        "param_shapes": shapes,
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "dp_world_size": 2,
        "mp_world_size": 1,
        "ds_version": "0.19.8",
        "ds_config": {"zero_optimization": {"stage": stage}},
        "lightning_gaudi_model_name": "model",
        "epoch": 1,
    }
    found = {_MODEL: model}
    for rank in range(2):
        groups = {
            "zero_stage": stage,
            "partition_count": [2],
            "single_partition_of_fp32_groups": [torch.arange(3.0) + rank],
            "base_optimizer_state": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        }
        found[_OPTIMIZER.format(rank)] = {"optimizer_state_dict": groups, "ds_version": "0.19.8"}
    return found


def _as_file(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _walked(random: Any, state: Any) -> Any:
    """A state of which a value is another."""
    found = dict(state)
    name = random.choice(sorted(found))
    inner = found[name]
    if isinstance(inner, dict) and inner and random.random() < 0.8:
        found[name] = _walked(random, inner)
    elif random.random() < 0.15:
        del found[name]
    else:
        choices: tuple[Any, ...] = (
            10**9,
            -1,
            [torch.ones(1)],
            [torch.ones(10_000)],
            torch.ones(2).int(),
            [OrderedDict(w=torch.Size([10**6, 10**6]))],
            [OrderedDict(w=torch.Size([-1]))],
            [{"w": "x"}],
            OrderedDict(),
            wild.value(random, 1),
        )
        found[name] = random.choice(choices)
    return found


@target(
    "deepspeed.checkpoint",
    f"{_PACKAGE}.shards:load",
    f"{_PACKAGE}.shards:read_by_deepspeed",
    f"{_PACKAGE}.shards:_is_whole",
    errors=(ValueError, DamagedCheckpointError, UntrustedCheckpointError, FileNotFoundError),
    num_quick=13,
)
def _deepspeed(folder: Path) -> Parser:
    """A checkpoint of ZeRO-2 of two ranks, put together into one file."""
    from lightning_gaudi.deepspeed.checkpoint import consolidate, resize, shards

    seed, work, outside = folder / "seed.ckpt", folder / "work.ckpt", folder / "outside"
    version = seed / "checkpoint"
    version.mkdir(parents=True)
    states = _states(2)
    for name, state in states.items():
        (version / name).write_bytes(_as_file(state))
    (seed / "latest").write_text("checkpoint")
    shutil.copytree(version, outside)
    _sign(version)
    files = {each.name: each.read_bytes() for each in version.iterdir()}
    original, _ = consolidate.consolidated(seed)

    def damage(random: Any) -> tuple[str, bytes, bool]:
        name = random.choice((*states, *states, "latest"))
        if name == "latest":
            tags = (b"../outside", str(outside).encode(), b"checkpoint\0", b".", b"..")
            if random.random() < 0.5:
                return name, random.choice(tags), True
            return name, wild.damaged_text(random, b"checkpoint"), True
        if random.random() < 0.7:
            content = _as_file(_walked(random, states[name]))
        else:
            content = wild.damaged_zip(random, files[name], _record)
        return name, content, random.random() < 0.85

    def parse(given: tuple[str, bytes, bool]) -> Any:
        name, content, is_signed = given
        shutil.rmtree(work, ignore_errors=True)
        (work / "checkpoint").mkdir(parents=True)
        for each, data in {**files, name: content}.items():
            (work / each if each == "latest" else work / "checkpoint" / each).write_bytes(data)
        if name != "latest":
            (work / "latest").write_text("checkpoint")
        if is_signed:
            (work / "checkpoint" / "manifest.json").unlink()
        found, _ = consolidate.consolidated(work)
        whole = shards.find(work)
        resize.check_resizable(whole, 2) if resize._kept(whole) else resize.param_groups(whole)
        return found

    def check(given: tuple[str, bytes, bool], found: Any) -> None:
        name, content, is_signed = given
        if name == "latest":
            if (work / content.decode().strip()).resolve() != (work / "checkpoint").resolve():
                raise WrongResultError(f"{content!r} was loaded")
        elif not is_signed and content != files[name] and not is_equal(found, original):
            raise WrongResultError(f"{name} was changed, and was loaded")

    return Parser(damage, parse, check)
