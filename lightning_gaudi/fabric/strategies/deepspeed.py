"""`HPUDeepSpeedStrategy`: models larger than a card, through DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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

from lightning_gaudi._core import vendor
from lightning_gaudi._patches import deepspeed

from ... import distributed
from ...deepspeed import library
from ...deepspeed.checkpoint import fabric_state, weights
from ...deepspeed.checkpoint import load as sharded
from ...deepspeed.config import load as settings
from ...deepspeed.config import offload
from ...deepspeed.config.optimizers import check as check_optimizer
from ...deepspeed.config.validation import check_keys
from ...deepspeed.engine import initialize
from ...deepspeed.engine.accumulation import ATTRIBUTE, Accumulation
from ..precision import HPUDeepSpeedPrecision
from ..precision.deepspeed import check_precision
from .parallel import RankedHPUStrategy

# Lightning before 2.6 sets up no schedules, and unpacks two values. Delete with 2.5.
_TAKES_SCHEDULER = (
    "scheduler" in signature(DeepSpeedStrategy.setup_module_and_optimizers).parameters
)


class HPUDeepSpeedStrategy(RankedHPUStrategy, DeepSpeedStrategy):
    """Models larger than a card, through DeepSpeed's ZeRO: `Fabric(strategy="hpu_deepspeed")`.

    Every `deepspeed` name and `DeepSpeedStrategy` instance becomes one on accelerator "hpu" and
    keeps its arguments, which are those of Lightning's `DeepSpeedStrategy`.

    Gradients are accumulated as with other strategies: in `Fabric.no_backward_sync`, with a loss
    that the loop divides. Or as in DeepSpeed: with `gradient_accumulation_steps` in the
    configuration, a step of the optimizer after each backward, and DeepSpeed divides.
    """

    strategy_name = "hpu_deepspeed"

    precision_kind = HPUDeepSpeedPrecision

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make one; see Lightning's `DeepSpeedStrategy` for the arguments."""
        self.check_installed()
        library.load()
        super().__init__(*args, **kwargs)

    @classmethod
    @override
    def check_installed(cls) -> None:
        """Raise if DeepSpeed is absent or too old."""
        library.check_installed("strategy='deepspeed'")

    @override
    def become_hpu(self, typed: str) -> None:
        """Check what the user passed, and that DeepSpeed computes on the HPU."""
        super().become_hpu(typed)
        library.load()
        assert isinstance(self.config, dict)
        check_keys(self.config)
        offload.check(self.config)
        self._backward_sync_control = _SyncControl()

    @override
    def setup_environment(self) -> None:
        """Choose this rank's card, prepare it, then connect all ranks."""
        assert self.parallel_devices is not None
        distributed.select_card(self.parallel_devices, self.local_rank)
        # Fabric has no end at which they could be unset.
        deepspeed.set_variables()
        assert isinstance(self.config, dict)
        offload.prepare(self.config)
        # Not DeepSpeedStrategy's: it refuses what is not a GPU.
        super(DeepSpeedStrategy, self).setup_environment()

    @override
    def _setup_distributed(self) -> None:
        super()._setup_distributed()
        self._set_node_environment_variables()
        library.connect(self._timeout)
        if not self._config_initialized:
            self._format_config()
            self._config_initialized = True

    @override
    def _load_config(self, config: Any) -> dict[str, Any] | None:
        return settings.read(config, self.DEEPSPEED_ENV_VAR)

    @override
    def _format_config(self) -> None:
        assert isinstance(self.config, dict)
        check_precision(self.precision)
        self.config = settings.complete(
            self.config,
            settings.Settings(
                precision=self.precision.precision,
                world_size=self.world_size,
                fp16={name: getattr(self, name) for name in settings.LOSS_SCALING},
            ),
        )
        check_optimizer(self.config)

    @override
    def module_to_device(self, module: Module) -> None:
        """Move the module, with its tied weights tied, but for weights that are in shards."""
        if not initialize.is_in_shards(module):
            self._move(module)

    @override
    def setup_module_and_optimizers(
        self, module: Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[Any, list[Optimizer], Any]:
        """Have DeepSpeed train the module with its one optimizer.

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
        assert isinstance(self.config, dict)
        if "optimizer" in self.config:
            raise MisconfigurationException(
                f"DeepSpeed's configuration names an optimizer, {self.config['optimizer']}, but "
                f"Fabric.setup() got a {type(optimizers[0]).__name__}. Leave one of them out."
            )
        self._follow(optimizers[0])
        # DeepSpeed would step the scheduler with the optimizer, and the loop does so once more.
        optimizer = self._make_engine(module, optimizers[0])
        if not _TAKES_SCHEDULER:
            return self._deepspeed_engine, [optimizer]  # type: ignore[return-value]
        return self._deepspeed_engine, [optimizer], scheduler

    @override
    def setup_module(self, module: Module) -> Any:
        """Have DeepSpeed evaluate the module, or train it with the configured optimizer.

        In the second case `fabric.strategy.model.step()` steps it after `Fabric.backward`.
        """
        assert isinstance(self.config, dict)
        if "optimizer" in self.config:
            self._make_engine(module)
        else:
            self._deepspeed_engine = initialize.make_inference_engine(module, self.config)
        return self._deepspeed_engine

    def _make_engine(self, module: Module, optimizer: Optimizer | None = None) -> Any:
        """An engine that trains; what it made of the optimizer."""
        assert isinstance(self.config, dict)
        found, wrapped = initialize.make_engine(module, self.config, optimizer=optimizer)
        initialize.configure_checkpointing(self.config)
        Accumulation(found, wrapped)
        self._deepspeed_engine = found
        return wrapped

    @override
    def backward(  # type: ignore[override]
        self, tensor: Tensor, module: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Run backward, then cut the graph."""
        found: Accumulation | None = getattr(module, ATTRIBUTE, None)
        if found is not None:
            found.note_backward()
        super().backward(tensor, module, *args, **kwargs)  # type: ignore[arg-type]

    @override
    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """Have the optimizer's engine step, then cut the graph.

        Lightning steps the optimizer itself, since the engine lacks what its protocol asks for
        (2.6.6, `fabric/wrappers.py`): stage 0 then clips nothing, and DeepSpeed counts no steps.

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
        self._end_of_graph()
        return loss

    @override
    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """New weights are on the HPU; under ZeRO-3 each layer is in shards as soon as it is made.

        Raises:
            NotImplementedError: `empty_init=False` under ZeRO-3.
        """
        vendor.seed_if_due()
        return super().module_init_context(empty_init)

    @override
    def save_checkpoint(
        self,
        path: _PATH,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Save objects by their names, the model and its optimizer in shards: a folder.

        Args:
            path: A local folder.
            state: The objects; one is the model.
            storage_options: Not supported.
            filter: Not supported.
        """
        fabric_state.save(
            self.broadcast(path),
            state,
            lambda others: self._convert_stateful_objects_in_state(others, filter={}),
            exclude_frozen=self.exclude_frozen_parameters,
            storage_options=storage_options,
            filter=filter,
        )

    @override
    def load_checkpoint(
        self, path: _PATH, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load objects in place, from a checkpoint in shards or from one of any other strategy.

        Args:
            path: A local folder in the first case.
            state: The objects by name, or one of them.
            strict: Whether the checkpoint must have all of them.
            weights_only: As for `torch.load`; shards cannot be loaded with True.

        Returns:
            What else the checkpoint has.
        """
        path = self.broadcast(path)
        options: Any = {"strict": strict, "weights_only": weights_only}
        if sharded.is_in_shards(path):
            return fabric_state.load(path, state, **options)

        def load_model(module: Module, found: Mapping[str, Any]) -> None:
            self.load_module_state_dict(module, found, strict=strict)

        return fabric_state.load_whole(path, state, self.checkpoint_io, load_model, **options)

    @override
    def load_module_state_dict(
        self, module: Module, state_dict: Mapping[str, Any], strict: bool = True
    ) -> None:
        """Load whole weights into a model, be it in shards."""
        if fabric_state.is_engine(module):
            weights.load_weights(module, state_dict, strict=strict)
        else:
            super().load_module_state_dict(module, state_dict, strict=strict)  # type: ignore[arg-type]

    @override
    def clip_gradients_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: DeepSpeed clips as it steps.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(_clips_by_itself("max_norm", kwargs.get("max_norm")))

    @override
    def clip_gradients_value(self, *args: Any, **kwargs: Any) -> None:
        """Refuse; see `clip_gradients_norm`.

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
