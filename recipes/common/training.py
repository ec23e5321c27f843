"""Defines what the LightningModules of all recipes do alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    Strategy,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from transformers import PreTrainedModel

from lightning_gaudi.callbacks import MetricHistory
from lightning_gaudi.untrusted import parse_json
from recipes.common.errors import UserError
from recipes.common.optimizers import (
    AUTO,
    CLIPS_ITSELF,
    EPSILON,
    OptimizerName,
    make_optimizer,
    make_schedule,
)
from recipes.common.sections import Section

Data = TypeVar("Data", bound=LightningDataModule)

SPLITS = {"val": "validation", "test": "test"}
"""The split of the data that is evaluated in a stage, by the stage's name in metrics."""
CONFIG_KEY, CLASS_KEY = "transformers_config", "transformers_class"
"""The keys of a checkpoint with what is needed to build its model without a download."""


class RecipeModule(LightningModule):
    """The abstract base of the recipes' models: trains one of transformers without waits.

    A subclass sets `self.model` and calls `self.save_hyperparameters()`; among its hyperparameters
    are optimizer, learning_rate, schedule, warmup_steps, weight_decay, betas, max_grad_norm and, if
    it may be chosen, epsilon (see `optimizers.py`). Its `training_step` returns `loss`, and
    whatever else ends in `_loss`, detached; these are logged as `train/...`, see `MetricHistory`.

    Its `forward` takes a batch, and computes what `training_step` returns, or with `scores=True`
    what an evaluation adds up. It includes the losses, so that one graph has all but the optimizer.

    It tests as it validates: `validation_step` adds up what `forward` returns for scores, a tensor
    of `num_totals` sums, and `log_evaluation` logs what `read_totals` makes of them, under the name
    of the stage.
    """

    model: PreTrainedModel
    progress_loss = "loss"
    """The loss that the progress bar shows, and that the report draws."""
    validation_loss = "val/loss"
    validation_score = "val/accuracy"
    """The metrics that the report draws, if they are logged."""
    samples = "samples"
    """The name of a batch's rows; with this one, the pace is reported in tokens, too."""

    def __init__(self) -> None:
        super().__init__()
        # Not on the class: a checkpoint notes the attributes that a module got after it was made.
        self._totals: Tensor | None = None

    @property
    def compile_regions(self) -> tuple[str, ...]:
        """The regions to compile: all of `forward`, or its blocks if activations are recomputed."""
        recomputes = self.hparams.get("gradient_checkpointing", False)
        return () if recomputes else (type(self).__name__,)

    def configure_callbacks(self) -> list[Callback]:
        """Returns the callback that logs losses as means over the log interval."""
        return [MetricHistory(self.progress_loss)]

    def report_sections(self, stage: str) -> list[Section]:
        """Returns the lines of the report that only this model knows, such as baselines.

        Args:
            stage: "val" or "test"; their metrics are in `trainer.callback_metrics`, if it was run.
        """
        return []

    def references(self, name: str) -> dict[str, float]:
        """Returns what to compare a curve with, by label, for "loss" or `validation_score`."""
        return {}

    def untrained(self) -> str | None:
        """Returns what `fit` has to train before a score means anything; None if nothing.

        It is asked of a model into which no checkpoint was loaded.
        """
        has_name = self.hparams.get("name") is not None
        return None if has_name else "random weights, of a model that has learnt nothing"

    def log_evaluation(self, stage: str) -> None:
        """Logs what the steps of an evaluation have added up.

        Args:
            stage: "val" or "test", with which the names of the metrics begin; see `SPLITS`.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define log_evaluation.")

    @property
    def num_totals(self) -> int:
        """The number of sums that `forward` returns for scores."""
        return 2

    def on_validation_epoch_start(self) -> None:
        """Starts the sums of the validation, on the device."""
        self._totals = torch.zeros(self.num_totals, device=self.device)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Adds up sums, not means, since the last batch may hold fewer samples."""
        assert self._totals is not None
        self._totals += self(batch, scores=True)

    def on_validation_epoch_end(self) -> None:
        """Logs the scores of the validation."""
        self.log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        """Prepares for a test as for a validation."""
        self.on_validation_epoch_start()

    def test_step(self, *args: Any) -> None:
        """Does what a validation does with a batch."""
        self.validation_step(*args)

    def on_test_epoch_end(self) -> None:
        """Logs the scores of the test."""
        self.log_evaluation("test")

    def configure_optimizers(self) -> Any:
        """Returns the optimizer and the schedule that the hyperparameters name."""
        settings, name = self.hparams, self._optimizer_name()
        if name in CLIPS_ITSELF and self.trainer.gradient_clip_val:
            raise UserError(
                f"model.optimizer={name} clips the gradients itself, but "
                f"trainer.gradient_clip_val is {self.trainer.gradient_clip_val}. Leave it out, and "
                "set model.max_grad_norm."
            )
        if self._trainer is not None:
            strategy = self._trainer.strategy
            _check_takes_shards(name, settings["weight_decay"], strategy)
        optimizer = make_optimizer(
            name,
            self,
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            betas=settings["betas"],
            max_grad_norm=settings["max_grad_norm"],
            epsilon=settings.get("epsilon", EPSILON),
        )
        num_steps, warmup = self.trainer.estimated_stepping_batches, settings["warmup_steps"]
        schedule = make_schedule(settings["schedule"], optimizer, num_steps, warmup)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _optimizer_name(self) -> OptimizerName:
        """Returns the optimizer's name; `auto` is torch's AdamW if a strategy cuts weights up."""
        name: OptimizerName = self.hparams["optimizer"]
        if name == AUTO and self._trainer is not None and cuts_up(self._trainer.strategy):
            return "adamw"
        return name

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the model's configuration, so that it can be exported without a download."""
        checkpoint[CONFIG_KEY] = self.model.config.to_json_string(use_diff=False)
        checkpoint[CLASS_KEY] = type(self.model).__name__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the weights of another model before any are loaded.

        Raises:
            UserError: naming the settings in which the models differ.
        """
        if not (theirs := checkpoint.get("state_dict")):
            return  # a strategy has loaded the weights in parts, and compared them
        ours = self.state_dict(keep_vars=True)
        # ZeRO-3 leaves an empty weight where it has cut one up, and notes its shape.
        shapes = {name: getattr(weight, "ds_shape", weight.shape) for name, weight in ours.items()}
        differing = [name for name, shape in shapes.items() if _shape(theirs, name) != shape]
        if differing:
            raise UserError(
                f"The checkpoint holds another model than the one that is configured: "
                f"{_difference(checkpoint, self.model.config.to_dict()) or differing[0]}. Start "
                "with the settings of the run that wrote it (config.yaml in its folder)."
            )

    def data_of(self, kind: type[Data], what: str) -> Data:
        """Returns the Trainer's DataModule.

        Args:
            kind: its class.
            what: the model takes from it, for the message.

        Raises:
            MisconfigurationException: it is of another class.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, kind):
            raise MisconfigurationException(
                f"{type(self).__name__} takes {what} from a {kind.__name__}, but "
                f"trainer.datamodule is {data!r}. Pass `datamodule={kind.__name__}(...)`."
            )
        return data

    def read_totals(self) -> list[float]:
        """Returns the sums of an evaluation over all processes; waits for the device once."""
        assert self._totals is not None
        totals, self._totals = self._totals, None
        return self.sum_over_ranks(totals)

    def sum_over_ranks(self, totals: Tensor) -> list[float]:
        """Adds a tensor up over all processes, and reads it; called once in an evaluation."""
        sums: Tensor = self.trainer.strategy.reduce(totals, reduce_op="sum")
        values: list[float] = sums.tolist()
        return values

    def log_on_host(self, values: Mapping[str, float], prog_bar: bool = False) -> None:
        """Logs numbers that are the same on all ranks; a plain number would go to the device."""
        for name, value in values.items():
            self.log(name, torch.tensor(value), prog_bar=prog_bar)


def gather_tokens(tokens: Tensor, positions: Tensor) -> Tensor:
    """Selects tokens of each row: [B, T, D] at [B, N] gives [B, N, D]."""
    return tokens.gather(1, positions.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Recomputes activations in the backward pass, with the random numbers of the forward pass.

    transformers 5.23 has a new name for this, and deprecates the one that 4 and 5.0 know.
    """
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})


def cuts_up(strategy: Strategy) -> bool:
    """Returns whether a strategy steps parts of weights, which takes torch's own optimizers."""
    return isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy)


def _check_takes_shards(name: str, weight_decay: float, strategy: Strategy) -> None:
    """Refuses optimizers that need whole weights, and a decay that FSDP cannot leave out."""
    if cuts_up(strategy) and name != "adamw":
        raise UserError(
            f"model.optimizer={name} updates whole weights, but trainer.strategy is "
            f"{type(strategy).__name__}, which cuts them up. Use model.optimizer=adamw.",
            instead="model.optimizer=adamw",
        )
    if isinstance(strategy, FSDPStrategy) and weight_decay:
        raise UserError(
            f"model.weight_decay={weight_decay} leaves out biases and norms, but under "
            f"{type(strategy).__name__} all weights look like them: flat. Use "
            "trainer.strategy=deepspeed_stage_3, or model.weight_decay=0."
        )


def _shape(state: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return state[name].shape if name in state else None


def _difference(checkpoint: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Returns the sizes in which configurations differ, as `hidden_size 64 (configured: 128)`."""
    try:
        theirs = parse_json(checkpoint.get(CONFIG_KEY, "{}"))
    except (ValueError, TypeError):  # ignored, since this only makes a message clearer
        theirs = {}
    theirs = theirs if isinstance(theirs, dict) else {}
    names = [
        name
        for name, value in theirs.items()
        if type(value) is int and type(ours.get(name)) is int and ours[name] != value
    ]
    return ", ".join(f"{name} {theirs[name]} (configured: {ours[name]})" for name in names)
