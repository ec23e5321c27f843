"""Finds the user's line that is running, and the part of a training run that it belongs to."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from lightning_gaudi.simulator.rules.report import is_library

TRAINING, VALIDATION, CHECKPOINT = "training", "validation", "checkpoint"
FORWARD, MODEL, BACKWARD, OPTIMIZER = "forward", "model", "backward", "optimizer"

_UNNAMED = frozenset(sys.stdlib_module_names) | {
    *("torch", "functorch", "lightning_gaudi", "_hpu_sim", "habana_frameworks"),
    *("lightning_utilities", "jsonargparse", ""),
}
"""Libraries whose lines are never named as the place below the user's line.

Everything goes through them, so they do not say which library has wanted something.
"""

_COMPILED = "habana_frameworks.torch.dynamo.compile_backend.backends"
_STAGES = {
    "loops.evaluation_loop": VALIDATION,
    "loops.prediction_loop": VALIDATION,
    "trainer.connectors.checkpoint_connector": CHECKPOINT,
    "callbacks.model_checkpoint": CHECKPOINT,
}
"""The stage, by how the name of a module of Lightning's ends, in both of its namespaces."""
_STAGES_BY_FUNCTION = {
    "transformers.trainer": {
        **dict.fromkeys(("evaluate", "predict", "evaluation_loop"), VALIDATION),
        **dict.fromkeys(("_save_checkpoint", "save_model"), CHECKPOINT),
    }
}
_TRAINERS = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), "lightning"),
    "transformers": "transformers",
}


class Place(NamedTuple):
    """Where an event happened; the fields are those of `record.Line`."""

    file: str
    line: int
    function: str
    via: str
    stage: str
    phase: str
    is_compiled: bool


class _Module(NamedTuple):
    """What a module's name says of its frames."""

    is_user: bool
    is_named: bool
    stage: str | None
    stages: dict[str, str]
    phase: str | None
    is_compiled: bool


def here() -> Place:
    """Returns the user's innermost line on this thread's stack; else the outermost line."""
    frame: FrameType | None = sys._getframe(1)
    user: FrameType | None = None
    named: FrameType | None = None
    outermost = frame
    stage, phase, is_compiled = TRAINING, FORWARD, False
    while frame is not None:
        module = _module(frame.f_globals.get("__name__") or "")
        if user is None and module.is_user:
            user = frame
        if user is None and named is None and module.is_named:
            named = frame
        if stage == TRAINING:
            stage = module.stage or module.stages.get(frame.f_code.co_name, TRAINING)
        # Lightning passes the forward pass to the optimizer as a closure. What a user's or a named
        # frame does inside an optimizer's call is that closure, and not the optimizer's step.
        is_closure = module.phase == OPTIMIZER and (user is not None or named is not None)
        if phase == FORWARD and not is_closure:
            phase = module.phase or FORWARD
        is_compiled = is_compiled or module.is_compiled
        outermost, frame = frame, frame.f_back
    found = user or outermost
    assert found is not None
    code = found.f_code
    via = "" if named is None else _show(named)
    return Place(code.co_filename, found.f_lineno, code.co_name, via, stage, phase, is_compiled)


def trainer() -> str:
    """Returns whose loop calls this line: "lightning" or "transformers", or "" for the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = (frame.f_globals.get("__name__") or "").partition(".")[0]
        if package in _TRAINERS:
            return _TRAINERS[package]
        frame = frame.f_back
    return ""


@functools.cache
def _module(name: str) -> _Module:
    package = name.partition(".")[0]
    is_user = not is_library(name)
    phase = None
    if name.startswith(("torch.optim.", "habana_frameworks.torch.hpex.optimizers")):
        phase = OPTIMIZER
    elif name.startswith("torch.autograd"):
        phase = BACKWARD
    elif name == "torch.nn.modules.module":
        phase = MODEL
    return _Module(
        is_user=is_user,
        is_named=not is_user and package not in _UNNAMED,
        stage=_stage(name),
        stages=_STAGES_BY_FUNCTION.get(name, {}),
        phase=phase,
        is_compiled=name == _COMPILED,
    )


def _stage(name: str) -> str | None:
    if not name.startswith(("lightning.pytorch.", "pytorch_lightning.")):
        return None
    return next((stage for end, stage in _STAGES.items() if name.endswith(end)), None)


def _show(frame: FrameType) -> str:
    """Returns a line of a library, and its function: "transformers/trainer.py:1914, _run_epoch"."""
    code = frame.f_code
    return f"{_short(code.co_filename)}:{frame.f_lineno}, {code.co_name}"


@functools.cache
def _short(file: str) -> str:
    """Returns a library's file as its users know it: from its package on."""
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return "/".join(parts[parts.index(folder) + 1 :])
    return file
