"""`HPUDeepSpeedStrategy`, which trains models larger than a card by DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any

from lightning.fabric.strategies.deepspeed import DeepSpeedStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core import progress, vendor
from lightning_gaudi.reliability.settings import as_told

from ...checkpoint.stored_shards import fetched
from ...deepspeed.checkpoint import fabric_state
from ...deepspeed.checkpoint.load import is_deepspeed_folder
from ...deepspeed.checkpoint.weights import load_weights
from ...deepspeed.config import load as settings
from ...deepspeed.config.optimizers import check_named_optimizer
from ...deepspeed.engine.accumulation import ATTRIBUTE, Accumulation
from ...deepspeed.engine.initialize import (
    configure_checkpointing,
    make_engine,
    make_inference_engine,
)
from ...deepspeed.engine.lifecycle import holds_zero3_shards
from ...deepspeed.strategy import DeepSpeedMixin
from ..precision.deepspeed import HPUDeepSpeedPrecision, check_precision
from .base import HPUStrategy

# Lightning before 2.6 sets up no schedules, and unpacks two values. Delete with 2.5.
_TAKES_SCHEDULER = (
    "scheduler" in signature(DeepSpeedStrategy.setup_module_and_optimizers).parameters
)


class HPUDeepSpeedStrategy(DeepSpeedMixin, HPUStrategy, DeepSpeedStrategy):
    """Trains models larger than a card by DeepSpeed's ZeRO: `Fabric(strategy="hpu_deepspeed")`.

    Every `deepspeed` name and `DeepSpeedStrategy` instance becomes one on accelerator "hpu" and
    keeps its arguments, which are those of Lightning's `DeepSpeedStrategy`.

    Gradients are accumulated as with other strategies, in `Fabric.no_backward_sync` with a loss
    that the loop divides; or by DeepSpeed, with `gradient_accumulation_steps` in the configuration
    and a step of the optimizer after each backward, and then DeepSpeed divides.
    """

    lightning_strategy = DeepSpeedStrategy

    precision_kind = HPUDeepSpeedPrecision

    def validate_for_hpu(self, typed: str) -> None:
        """Checks what the user passed, and that DeepSpeed computes on the HPU."""
        super().validate_for_hpu(typed)
        self._backward_sync_control = _SyncControl()

    @override
    def _setup_distributed(self) -> None:
        super()._setup_distributed()
        if not self._config_initialized:
            self._format_config()
            self._config_initialized = True

    @override
    def _format_config(self) -> None:
        check_precision(self.precision)
        self.config = settings.complete(
            self.deepspeed_config,
            settings.Settings(
                precision=self.precision.precision,
                world_size=self.world_size,
                fp16={name: getattr(self, name) for name in settings.LOSS_SCALING},
            ),
        )
        check_named_optimizer(self.config)

    @override
    @contextmanager
    def module_sharded_context(self) -> Generator[None, None, None]:
        """Shards weights as they are made under stage 3, even those of `from_pretrained`."""
        with super().module_sharded_context(), self._loads_into_shards():
            yield

    @override
    def module_to_device(self, module: Module) -> None:
        """Moves the module, and keeps tied weights tied, unless its weights are sharded."""
        if not holds_zero3_shards(module.parameters()):
            self._move(module)

    @override
    def setup_module_and_optimizers(
        self, module: Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[Any, list[Optimizer], Any]:
        """Sets up DeepSpeed to train the module with its one optimizer.

        Returns:
            The engine, its optimizer in a list, and `scheduler`, which the loop goes on stepping.

        Raises:
            ValueError: There are several optimizers.
            MisconfigurationException: The configuration names an optimizer, too.
        """
        if len(optimizers) != 1:
            raise ValueError(
                f"DeepSpeed trains a model with one optimizer, but Fabric.setup() got "
                f"{len(optimizers)}. Put all parameters into groups of one."
            )
        if (named := self.deepspeed_config.get("optimizer")) is not None:
            raise MisconfigurationException(
                f"DeepSpeed's configuration names an optimizer, {named}, but Fabric.setup() got a "
                f"{type(optimizers[0]).__name__}. Leave one of them out."
            )
        self._follow(optimizers[0])
        # DeepSpeed does not get the scheduler: it would step it with the optimizer, and the loop
        # does so, too.
        optimizer = self._make_engine(module, optimizers[0])
        if not _TAKES_SCHEDULER:
            return self._deepspeed_engine, [optimizer]  # type: ignore[return-value]
        return self._deepspeed_engine, [optimizer], scheduler

    @override
    def setup_module(self, module: Module) -> Any:
        """Sets up DeepSpeed to evaluate the module, or to train it with the configured optimizer.

        To train, call `fabric.strategy.model.step()` after `Fabric.backward`.
        """
        if "optimizer" in self.deepspeed_config:
            self._make_engine(module)
        else:
            self._deepspeed_engine = make_inference_engine(module, self.deepspeed_config)
            self._compile_for_fabric(module)
        return self._deepspeed_engine

    def _make_engine(self, module: Module, optimizer: Optimizer | None = None) -> Any:
        """Makes the engine that trains, and returns its wrapper of the optimizer."""
        found, wrapped = make_engine(module, self.deepspeed_config, optimizer=optimizer)
        configure_checkpointing(self.deepspeed_config)
        Accumulation(found, wrapped)
        self._deepspeed_engine = found
        self._compile_for_fabric(module)
        return wrapped

    @override
    def backward(self, tensor: Tensor, module: Any, *args: Any, **kwargs: Any) -> None:
        """Runs backward, then ends the graph."""
        found: Accumulation | None = getattr(module, ATTRIBUTE, None)
        if found is not None:
            found.note_backward()
        super().backward(tensor, module, *args, **kwargs)

    @override
    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """Lets the optimizer's engine step, then ends the graph.

        Lightning would step the optimizer itself, since the engine does not match its protocol
        (2.6.6, `fabric/wrappers.py`). Stage 0 then clips nothing, and DeepSpeed counts no steps.

        Args:
            optimizer: DeepSpeed's.
            closure: Computes the loss and runs backward, once.
            kwargs: None.

        Returns:
            What `closure` returned.
        """
        loss = None if closure is None else closure()
        accumulation: Accumulation = getattr(optimizer, ATTRIBUTE)
        accumulation.step()
        self._end_step()
        return loss

    @override
    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Makes new weights on the HPU; under ZeRO-3 each layer is sharded once it is made.

        Raises:
            NotImplementedError: `empty_init=False` under ZeRO-3.
        """
        vendor.seed_if_due()
        return super().module_init_context(empty_init)

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self,
        path: _PATH,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Saves objects by name to a folder, the model and its optimizer in shards.

        Args:
            path: A local folder, or an address that fsspec knows.
            state: The objects; one is the model.
            storage_options: Not supported.
            filter: Not supported.
        """
        self.guard.save(state)
        fabric_state.save(
            self.broadcast(path),
            state,
            lambda others: self._convert_stateful_objects_in_state(others, filter={}),
            exclude_frozen=self.exclude_frozen_parameters,
            with_manifest=self.reliability.verify_checkpoints,
            storage_options=storage_options,
            filter=filter,
        )

    @override
    @as_told
    def load_checkpoint(
        self, path: _PATH, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads objects in place, from a folder of shards or a checkpoint of any other strategy.

        Args:
            path: A local path, or an address that fsspec knows.
            state: The objects by name, or one of them.
            strict: Whether the checkpoint must have all of them.
            weights_only: See `HPUCheckpointIO.load_checkpoint`.

        Returns:
            The rest of the checkpoint.
        """

        def load_model(module: Module, found: Mapping[str, Any]) -> None:
            self.load_module_state_dict(module, found, strict=strict)

        with fetched(self.broadcast(path)) as found:
            if is_deepspeed_folder(found):
                verify = self.reliability.verify_checkpoints
                return fabric_state.load(found, state, strict=strict, verify=verify)
            return fabric_state.load_whole(
                found,
                state,
                self.checkpoint_io,
                load_model,
                strict=strict,
                weights_only=weights_only,
            )

    @override
    def load_module_state_dict(
        self, module: Module, state_dict: Mapping[str, Any], strict: bool = True
    ) -> None:
        """Loads whole weights into a model, sharded or not."""
        if fabric_state.is_engine(module):
            load_weights(module, state_dict, strict=strict)
        else:
            super().load_module_state_dict(module, state_dict, strict=strict)  # type: ignore[arg-type]

    @override
    def clip_gradients_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Raises, since DeepSpeed clips as it steps.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(_clips_by_itself("max_norm", kwargs.get("max_norm")))

    @override
    def clip_gradients_value(self, *args: Any, **kwargs: Any) -> None:
        """Raises; see `clip_gradients_norm`.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(_clips_by_itself("clip_val", kwargs.get("clip_val")))


def _clips_by_itself(name: str, value: Any) -> str:
    return (
        f"Fabric.clip_gradients({name}={value}) cannot be done under DeepSpeed, which holds the "
        "gradients and clips them as it steps, by their norm. Leave the call out, and set "
        "'gradient_clipping' in DeepSpeed's configuration: DeepSpeedStrategy(config={...})."
    )


class _SyncControl(_BackwardSyncControl):
    """Tells DeepSpeed which backward ends an accumulation."""

    @override
    def no_backward_sync(self, module: Any, enabled: bool) -> AbstractContextManager[None]:
        found: Accumulation | None = getattr(module, ATTRIBUTE, None)
        return nullcontext() if found is None else found.of(is_last=not enabled)
