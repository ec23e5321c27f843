"""Phase 2 of a pretraining: the weights and moments of phase 1, another schedule and other data.

Phase 1 learns from short sequences, phase 2 from long ones. What phase 2 takes over are the weights
and the optimizer's averages of the gradients; the step count (so the schedule and the correction of
the averages' start), the learning rate and the data begin anew.

Source: that is what the published LAMB runs do (run_pretraining.py with --phase2, in NVIDIA
DeepLearningExamples and in Habana Model-References).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipes.common.errors import UserError, first_line
from recipes.common.optimizers import kind
from recipes.common.training import CONFIG_KEY, RecipeModule

REQUIRED = "required"
PHASE1_KEY = "phase1_checkpoint"
"""Where a checkpoint says which one it began with; None in phase 1."""


@dataclass(frozen=True)
class Phase1:
    """A checkpoint to begin with; its tensors stay in the file until they are asked for."""

    path: str
    checkpoint: dict[str, Any]

    @classmethod
    def of(cls, path: str | None, module: RecipeModule) -> Phase1 | None:
        """Returns the checkpoint that `model.phase1_checkpoint` names, if any, after a look at it.

        Raises:
            UserError: if it is no checkpoint of phase 1 of the same model.
        """
        if path is None:
            return None
        if path == REQUIRED:
            return cls(path, {})
        phase1 = cls(path, _read(path))
        phase1._check(module)
        return phase1

    def load_weights(self, module: RecipeModule) -> None:
        """Gives the module, still on the CPU, the weights, and its data the vocabulary.

        Raises:
            UserError: if the data have another vocabulary, or no checkpoint was named.
        """
        if self.path == REQUIRED:
            raise UserError(
                f"model.phase1_checkpoint={REQUIRED}: this configuration goes on from phase 1. "
                "Name the last checkpoint of phase 1, or null to begin with random weights."
            )
        data = module.trainer.datamodule  # type: ignore[attr-defined]
        data.load_state_dict(self.checkpoint.get(type(data).__qualname__, {}))
        module.load_state_dict(self.checkpoint["state_dict"])

    def load_moments(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives an optimizer that has not made a step the averages, and no more.

        Raises:
            UserError: if it is of another kind, or trains other parameters.
        """
        (saved,) = self.checkpoint["optimizer_states"]
        groups = optimizer.state_dict()["param_groups"]
        ours, theirs = ([len(g["params"]) for g in gs] for gs in (groups, saved["param_groups"]))
        if ours != theirs:
            raise UserError(
                f"model.phase1_checkpoint={self.path}: it trained {sum(theirs)} parameters, and "
                f"{sum(ours)} are trained now. Set data.next_sentence and model.weight_decay as in "
                "phase 1."
            )
        state = {index: _without_steps(values) for index, values in saved["state"].items()}
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _check(self, module: RecipeModule) -> None:
        name = f"model.phase1_checkpoint={self.path}"
        if not self.checkpoint.get("optimizer_states") or CONFIG_KEY not in self.checkpoint:
            raise UserError(
                f"{name} holds no model with the state of its optimizer: name a checkpoint that "
                "`fit` of this recipe wrote, with save_weights_only left false."
            )
        if self.checkpoint.get(PHASE1_KEY) is not None:
            raise UserError(
                f"{name} was written by phase 2, which began with "
                f"{self.checkpoint[PHASE1_KEY]}. To go on with it, give it as --ckpt_path."
            )
        try:
            module.on_load_checkpoint(self.checkpoint)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        theirs, ours = (
            kind(str(settings.get("optimizer")))
            for settings in (self.checkpoint["hyper_parameters"], module.hparams)
        )
        if theirs != ours:
            raise UserError(
                f"{name} was trained with model.optimizer={theirs}, whose averages are not those "
                f"of {ours}. Set the same."
            )


def _read(path: str) -> dict[str, Any]:
    """Maps a checkpoint into memory: what is not used is not read."""
    if not Path(path).is_file():
        raise UserError(
            f"model.phase1_checkpoint={path} does not exist. Name the last .ckpt file of phase 1; "
            "to validate or test a checkpoint of phase 2, set it to null."
        )
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch has no type for a file that is damaged
        raise UserError(
            f"model.phase1_checkpoint={path} cannot be read as a checkpoint: {first_line(error)}"
        ) from error
    return content if isinstance(content, dict) else {}


def _without_steps(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter's averages, in memory of their own, with a count of no steps."""
    copied = {n: v.clone() if isinstance(v, Tensor) else v for n, v in state.items()}
    if "step" in copied:
        copied["step"] = copied["step"] * 0
    return copied
