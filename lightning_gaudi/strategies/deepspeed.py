"""`HPUDeepSpeedStrategy`, which trains models larger than a card by DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_summary.model_summary_deepspeed import DeepSpeedSummary
from lightning.pytorch.utilities.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core import progress
from lightning_gaudi._patches.apply import add
from lightning_gaudi._patches.deepspeed import unset_variables
from lightning_gaudi.reliability.settings import as_told

from ..checkpoint.stored_shards import fetched
from ..deepspeed.checkpoint import load as loading
from ..deepspeed.checkpoint.save import save
from ..deepspeed.checkpoint.weights import load_weights
from ..deepspeed.config import load as settings
from ..deepspeed.config.optimizers import check_named_optimizer
from ..deepspeed.engine.accumulation import stepped_by_user, tell_boundary
from ..deepspeed.engine.initialize import (
    configure_checkpointing,
    make_engine,
    make_inference_engine,
)
from ..deepspeed.engine.lifecycle import restore_linear
from ..deepspeed.strategy import DeepSpeedMixin
from ..precision.deepspeed import HPUDeepSpeedPrecision, check_precision
from .base import HPUStrategy


class HPUDeepSpeedStrategy(DeepSpeedMixin, HPUStrategy, DeepSpeedStrategy):
    """Models larger than a card, through DeepSpeed's ZeRO: `Trainer(strategy="hpu_deepspeed")`.

    Every `deepspeed` name and `DeepSpeedStrategy` instance becomes one on accelerator "hpu" and
    keeps its arguments, which are those of Lightning's `DeepSpeedStrategy`.
    """

    has_whole_gradients = False

    writes_together = saves_shards = True

    lightning_strategy = DeepSpeedStrategy

    precision_kind = HPUDeepSpeedPrecision

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _given_config: dict[str, Any] | None = None
    _configured_for: tuple[Any, ...] | None = None

    def validate_for_hpu(self, typed: str) -> None:
        """Checks what the user passed, and that DeepSpeed computes on the HPU."""
        super().validate_for_hpu(typed)
        _complete_summary()

    @override
    def _init_config_if_needed(self) -> None:
        # Lightning completes the settings once. A strategy may be used by another Trainer, or for
        # another function of it, which accumulates or clips differently: so they are made for each.
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        run = (
            trainer,
            trainer.state.fn,
            trainer.accumulate_grad_batches,
            trainer.gradient_clip_val,
        )
        if run == self._configured_for:
            return
        self._configured_for = run
        check_precision(self.precision_plugin)
        if self._given_config is None:
            self._given_config = self.deepspeed_config
        self.config = settings.complete(
            self._given_config,
            settings.Settings(
                precision=self.precision_plugin.precision,
                world_size=self.world_size,
                accumulated=trainer.accumulate_grad_batches,
                clip_val=trainer.gradient_clip_val,
                micro_batch_size=self._auto_select_batch_size,
                num_steps=lambda: trainer.estimated_stepping_batches,
                fp16={name: getattr(self, name) for name in settings.LOSS_SCALING},
            ),
        )
        check_named_optimizer(self.config)
        if isinstance(self.precision_plugin, HPUDeepSpeedPrecision):
            self.precision_plugin.gradient_clipping = self.config["gradient_clipping"]

    @override
    def _auto_select_batch_size(self) -> int:
        # Lightning's own method fails if the loader has no batch size, and makes a loader for
        # training also where nothing is trained.
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        source = trainer.fit_loop._data_source
        is_fitting = trainer.state.fn == TrainerFn.FITTING
        loader = source.dataloader() if is_fitting and source.is_defined() else None
        return getattr(getattr(loader, "batch_sampler", None), "batch_size", None) or 1

    @property
    @override
    def handles_gradient_accumulation(self) -> bool:
        """Returns False, since Lightning tells DeepSpeed which step ends an accumulation."""
        # DeepSpeed counts on from one epoch into the next, where Lightning starts anew: its steps
        # would fall in the middle of what Lightning accumulates.
        return False

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Does nothing, since `training_step` tells DeepSpeed when to reduce."""
        yield

    @override
    @contextmanager
    def model_sharded_context(self) -> Generator[None, None, None]:
        """Shards weights as they are made under stage 3, those of `from_pretrained`, too."""
        with super().model_sharded_context(), self._loads_into_shards():
            yield

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Runs one step, having told DeepSpeed whether it ends an accumulation."""
        assert self.lightning_module is not None
        is_last = not self.lightning_module.trainer.fit_loop._should_accumulate()
        tell_boundary(self.deepspeed_engine, is_last=is_last)
        return super().training_step(*args, **kwargs)

    @override
    def _setup_model_and_optimizer(
        self, model: Module, optimizer: Optimizer | None, lr_scheduler: Any = None
    ) -> tuple[Any, Optimizer]:
        assert self.lightning_module is not None
        _check_trains(optimizer)
        config = self.deepspeed_config
        # With manual optimization the user decides when to step, whatever the settings accumulate.
        if not self.lightning_module.automatic_optimization:
            config = stepped_by_user(config)
        return make_engine(model, config, optimizer=optimizer, lr_scheduler=lr_scheduler)

    @override
    def _initialize_deepspeed_inference(self, model: Module) -> None:
        self.model = make_inference_engine(model, self.deepspeed_config)

    @override
    def _set_deepspeed_activation_checkpointing(self) -> None:
        configure_checkpointing(self.deepspeed_config)

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves a folder of shards; see `deepspeed.checkpoint`."""
        if storage_options is not None:
            raise TypeError(
                f"DeepSpeed has no use for storage_options={storage_options!r}. Leave them out."
            )
        states = ("state_dict", "optimizer_states")
        if "optimizer_states" not in checkpoint:
            rank_zero_warn(
                "save_weights_only=True makes no smaller checkpoint: DeepSpeed's shards have the "
                "weights with the optimizer. `lightning-gaudi consolidate` takes them out."
            )
        self.guard.save(checkpoint)
        extras = {name: value for name, value in checkpoint.items() if name not in states}
        save(
            self.deepspeed_engine,
            self.broadcast(filepath),
            extras,
            exclude_frozen=self.exclude_frozen_parameters,
            with_manifest=self.reliability.verify_checkpoints,
            write=self.saving.write,
        )

    @override
    @as_told
    def load_checkpoint(
        self, checkpoint_path: _PATH, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads a folder of shards, or reads a checkpoint of any other strategy."""
        assert self.lightning_module is not None
        is_fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        with fetched(self.broadcast(checkpoint_path)) as path:
            if loading.is_deepspeed_folder(path):
                checkpoint = loading.load(
                    self.deepspeed_engine,
                    path,
                    with_optimizer=is_fitting,
                    strict=self.lightning_module.strict_loading,
                    verify=self.reliability.verify_checkpoints,
                )
            else:
                checkpoint = loading.read_unsharded(
                    path, self.checkpoint_io, weights_only=weights_only
                )
                if is_fitting:
                    loading.begin_anew(self.deepspeed_engine, checkpoint_path, checkpoint)
        if is_fitting:
            self.guard.load(checkpoint)
        return checkpoint

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads whole weights; sharded ones were loaded by `load_checkpoint`."""
        if "state_dict" in checkpoint:
            load_weights(self.deepspeed_engine, checkpoint["state_dict"], strict=strict)

    @property
    @override
    def lightning_restore_optimizer(self) -> bool:
        """Returns False, since `load_checkpoint` has loaded DeepSpeed's optimizer."""
        return False

    @override
    def teardown(self) -> None:
        """Moves the model to the CPU, and undoes what DeepSpeed has changed in the process."""
        super().teardown()
        restore_linear()
        unset_variables(list(self._variables))
        self._variables = ()


def _check_trains(optimizer: Optimizer | None) -> None:
    """Refuses an optimizer without weights to train.

    Lightning makes such a one if `configure_optimizers` returns none.

    Args:
        optimizer: None where DeepSpeed's settings name one.

    Raises:
        MisconfigurationException: No parameter of it requires a gradient.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    if optimizer is not None and not any(parameter.requires_grad for parameter in parameters):
        raise MisconfigurationException(
            "DeepSpeed trains what its optimizer holds, but configure_optimizers returned none, or "
            "one of parameters that require no gradient. Return one of parameters to train, or "
            "name one in HPUDeepSpeedStrategy(config={'optimizer': ...})."
        )


def _complete_summary() -> None:
    """Lets Lightning 2.5 summarize a sharded model, for which it reads FLOPs that it never counts.

    Delete with 2.5: 2.6 counts them (`utilities/model_summary/model_summary.py`).
    """
    counts = property(lambda self: {name: {} for name in self.layer_names})
    add("deepspeed-summary", DeepSpeedSummary, "flop_counts", counts)
