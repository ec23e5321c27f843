"""What the Trainer calls the parts of a step, by stage."""

from __future__ import annotations

from typing import NamedTuple

_FIT = "fit"
EPOCH = "run_training_epoch"
"""All training steps of an epoch."""


class Stage(NamedTuple):
    """The names, or their endings, under which Lightning profiles a stage."""

    name: str
    """As `Trainer` has it: "fit", "validate", "test" or "predict"."""
    title: str
    """What its steps are called."""
    fetch: str
    """Fetching a batch, with which a step begins."""
    step: str
    """The step, without fetching and logging."""
    outermost: str
    """An exception that leaves this ends the stage."""

    def is_between_steps(self, action_name: str) -> bool:
        """Returns whether what Lightning does now is no part of a step, and ends one."""
        if self.name == _FIT and ".on_validation_" in action_name:
            return True
        return action_name.endswith("_epoch_end") or action_name == "save_checkpoint"


STAGES = {
    stage.name: stage
    for stage in (
        Stage(_FIT, "training", ".train_dataloader_next", "run_training_batch", EPOCH),
        Stage("validate", "validation", ".val_next", ".validation_step", ".validation_step"),
        Stage("test", "test", ".test_next", ".test_step", ".test_step"),
        Stage("predict", "prediction", ".predict_next", ".predict_step", ".predict_step"),
    )
}
