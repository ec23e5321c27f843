"""Loads a checkpoint on another number of cards than it was saved from.

DeepSpeed's universal checkpoint holds each parameter, and Adam's averages of it, in files of their
own, which any number of ranks can divide among themselves.
"""

from __future__ import annotations

import re
import shutil
import uuid
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from lightning_gaudi._core.collectives import broadcast_object, on_rank_zero, raise_together
from lightning_gaudi._patches.apply import replaced
from lightning_gaudi.untrusted import printable

from ...checkpoint.errors import ADVICE, DamagedCheckpointError
from . import shards as _shards
from .consolidate import quiet, weights
from .shards import Shards
from .weights import load_weights

_AVERAGES = frozenset({"step", "exp_avg", "exp_avg_sq"})
"""The states of a parameter that DeepSpeed can convert."""


def load(engine: Any, found: Shards, *, strict: bool) -> None:
    """Loads a checkpoint of another number of ranks, with its optimizer.

    All ranks call it.

    Args:
        engine: DeepSpeed's, which trains.
        found: Of any stage but 0.
        strict: Whether the names of its weights must be those of the model.

    Raises:
        OSError: There is no space for its universal form beside it.
        ValueError: The optimizer keeps something else than Adam's averages.
    """
    on_rank_zero(lambda: check_resizable(found, dist.get_world_size()))
    temporary = found.folder / broadcast_object(f".universal-{uuid.uuid4().hex}.tmp")
    try:
        on_rank_zero(lambda: convert(found, temporary))
        # Also a barrier: rank 0 removes the folder only when all ranks have read it.
        raise_together(_load(engine, temporary, found.tag, strict=strict))
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
    _complete(engine, found, strict=strict)


def _load(engine: Any, folder: Path, tag: str, *, strict: bool) -> Exception | None:
    """Loads a universal checkpoint, and returns the error of this rank, if any."""
    config = engine._config
    try:
        with replaced("deepspeed-resize", config, load_universal_checkpoint=True):
            engine.load_checkpoint(
                str(folder), tag=tag, load_lr_scheduler_states=False, load_module_strict=strict
            )
    except Exception as error:
        return error
    return None


def check_resizable(shards: Shards, num_ranks: int) -> None:
    """Refuses what DeepSpeed cannot divide anew, before anything is converted.

    Args:
        shards: Of any stage but 0.
        num_ranks: How many are to go on.

    Raises:
        ValueError: The optimizer keeps something else than Adam's averages.
    """
    with _shards.as_damage(shards.folder):
        kept = _kept(shards)
        _check_names(shards)
    if kept != _AVERAGES and kept != _AVERAGES - {"step"}:
        what = printable(", ".join(sorted(map(str, kept)))) if kept else "nothing"
        raise ValueError(
            f"The checkpoint {shards.folder} was saved by {shards.num_ranks} ranks, this run has "
            f"{num_ranks}, and DeepSpeed can divide an optimizer's state anew only if that is "
            f"Adam's (exp_avg and exp_avg_sq); this one's is {what}. Go on with devices x "
            f"num_nodes = {shards.num_ranks}, or start a new optimizer from the weights: "
            f"`lightning-gaudi consolidate {shards.folder} weights.ckpt`."
        )


def convert(shards: Shards, folder: Path) -> None:
    """Writes the universal form of a checkpoint.

    Args:
        shards: Of any stage but 0.
        folder: Where to; gets a folder with the version's name. Needs as much space as `shards`.
    """
    from deepspeed.checkpoint import ds_to_universal

    # One worker runs in this process. More would be forked, which a card does not survive.
    options = Namespace(
        input_folder=str(shards.folder / shards.tag),
        output_folder=str(folder / shards.tag),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with quiet(), _shards.as_damage(shards.folder):
        ds_to_universal.main(options)


def _check_names(shards: Shards) -> None:
    """Refuses names that cannot be file names, since the universal form has a folder for each.

    Raises:
        DamagedCheckpointError: A name would lead to another folder.
    """
    for path in (*shards.model_files, *shards.optimizer_files):
        for name in _names(_shards.load(path)):
            if not isinstance(name, str) or _NO_FILE.search(name) or len(name) > 240:
                raise DamagedCheckpointError(
                    f"{printable(path)} has {printable(repr(name), max_chars=200)} for the name of "
                    f"a parameter or a state, which is no name of a file. {ADVICE}"
                )


_NO_FILE = re.compile(r"/|\0|^\.*$")
"""Matches names that lead to another folder, or to the same one."""


def _names(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yields all names in a file that DeepSpeed uses as file names."""
    for shapes in (*(state.get("param_shapes") or ()), state.get("frozen_param_shapes") or {}):
        yield from shapes
    for key in ("module", "frozen_param_fragments", "shared_params"):
        yield from state.get(key) or {}
    yield from (state.get("shared_params") or {}).values()
    optimizer = state.get("optimizer_state_dict") or {}
    for mappings in optimizer.get("param_slice_mappings") or ():
        yield from mappings
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        inner = optimizer.get(key) or {}
        for states in inner if isinstance(inner, list) else [inner]:
            values = states.get("state", {}) if isinstance(states, Mapping) else {}
            for each in values.values():
                yield from each if isinstance(each, Mapping) else ()


def param_groups(shards: Shards) -> list[dict[str, Any]]:
    """Returns each parameter group's settings, such as the learning rate, as they were saved."""
    with _shards.as_damage(shards.folder):
        groups: list[dict[str, Any]] = _optimizer_state(shards)["param_groups"]
        return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def _kept(shards: Shards) -> frozenset[str]:
    """Returns the names of what the optimizer keeps of each parameter."""
    with _shards.as_damage(shards.folder):
        state: Mapping[Any, Mapping[str, Any]] = _optimizer_state(shards)["state"]
        return frozenset(key for values in state.values() for key in values)


def _optimizer_state(shards: Shards) -> dict[str, Any]:
    """Returns the state dict of the user's or the configured optimizer, of rank 0."""
    state = _shards.load(shards.optimizer_files[0])["optimizer_state_dict"]
    # The first is its name in stage 3.
    found: dict[str, Any] = state.get("optimizer_state_dict") or state["base_optimizer_state"]
    return found


def _complete(engine: Any, found: Shards, *, strict: bool) -> None:
    """Loads what DeepSpeed's universal checkpoint omits or mixes up (deepspeed 0.19.8).

    Delete this once it restores buffers and frozen parameters, and in stage 3 gives each parameter
    group its own settings instead of the first one's, and its own tensor that counts steps.
    """
    load_weights(engine, weights(found), strict=strict)
    optimizer = engine.optimizer.optimizer
    for group, saved in zip(optimizer.param_groups, param_groups(found), strict=True):
        group.update(saved)
    for state in optimizer.state.values():
        # Groups that share the tensor would each advance it, so a step would count once for each
        # group.
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].clone()
