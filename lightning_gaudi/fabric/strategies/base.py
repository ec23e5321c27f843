"""`HPUStrategy`, the base of Fabric's strategies for any number of cards."""

from __future__ import annotations

import functools
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.fabric.plugins import CheckpointIO, Precision
from lightning.fabric.strategies.strategy import Strategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override

from lightning_gaudi._core import progress, vendor
from lightning_gaudi._core.precision.fused_clipping import clip_norm
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._patches.optimizers import step_adam_by_kernel
from lightning_gaudi.data.resumable import ResumableLoaders
from lightning_gaudi.reliability.guard import Part
from lightning_gaudi.reliability.settings import as_told

from ...checkpoint.errors import damage_on_all_ranks
from ...checkpoint.io import HPUCheckpointIO
from ...distributed.strategy import HPUMixin
from ..precision.plugin import HPUPrecision
from .launchers import HPUScriptLauncher, HPUSpawnLauncher


class _Loaders(ResumableLoaders, Part):
    """Loaders that can resume, as a part of a strategy's guard."""


class HPUStrategy(HPUMixin):
    """The base of Fabric's strategies; each also extends one of Lightning's."""

    script_launcher = HPUScriptLauncher
    spawn_launcher = HPUSpawnLauncher

    precision_kind: type[Precision] = HPUPrecision
    """The class of the precision plugin for a precision given by name."""

    _checkpoint_io: CheckpointIO | None

    # Maps parameters to those that took their place when a module was moved. A class attribute,
    # since an instance of Lightning's own strategy may have become one of ours.
    _replaced: MutableMapping[Tensor, Parameter] | None = None

    def validate_for_hpu(self, typed: str) -> None:
        """Checks the user's arguments; Fabric has no loop that could wait for a background save.

        Raises:
            MisconfigurationException: An HPU cannot honour it.
        """
        super().validate_for_hpu(typed)
        if self.reliability.async_save:
            raise MisconfigurationException(
                "async_save=True is for the Trainer, whose loop tells of the writer's errors and "
                "waits for it. Leave it out with Fabric."
            )

    def _parts(self) -> tuple[Part, ...]:
        return (_Loaders(self),)

    def _number_ranks(self) -> None:
        self._set_world_ranks()

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """The plugin that reads and writes checkpoints."""
        if self._checkpoint_io is None:
            self._checkpoint_io = HPUCheckpointIO()
        if isinstance(self._checkpoint_io, HPUCheckpointIO):
            # The processes of a machine read the same file: one computes its checksum, and damage
            # is raised on all ranks (`load_checkpoint`).
            is_first = getattr(self, "local_rank", 0) == 0
            self._checkpoint_io.switch_verify(is_first and self.reliability.verify_checkpoints)
        return self._checkpoint_io

    @checkpoint_io.setter
    @override
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def setup_module(self, module: Module) -> Module:
        """Compiles the regions of the module that the settings name."""
        found: Module = super().setup_module(module)
        self._compile_for_fabric(found)
        return found

    def _compile_for_fabric(self, module: Module) -> None:
        # A program calls `training_step` and the like of a LightningModule, not its `forward`, so
        # only its submodules are compiled.
        self.compiler.compile(module, with_root=not hasattr(module, "training_step"))

    def backward(self, tensor: Tensor, module: Module | None, *args: Any, **kwargs: Any) -> None:
        """Runs backward, then ends the graph."""
        self.guard.loss(tensor)
        with self.compiler.explaining():
            super().backward(tensor, module, *args, **kwargs)
        vendor.end_graph()

    # `Fabric` compares this method with Lightning's (`is_overridden`), and would then refuse a
    # plain `loss.backward()`. That works here, too, with one graph instead of two.
    functools.update_wrapper(backward, Strategy.backward)

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Saves objects; raises if a loss since the last check was not finite."""
        self.guard.save(kwargs["state"] if "state" in kwargs else args[1])
        super().save_checkpoint(*args, **kwargs)

    @override
    @as_told
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads a checkpoint as far as it is trusted; all ranks refuse a damaged one."""
        with damage_on_all_ranks() if self.is_ranked else nullcontext():
            checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return checkpoint

    @override
    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Lets the optimizer step the parameters on the HPU, even if it was made before them."""
        self._follow(optimizer)
        step_adam_by_kernel(not self.has_whole_weights)
        found: Optimizer = super().setup_optimizer(optimizer)
        return found

    @override
    def clip_gradients_norm(
        self,
        module: Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clips by the norm of the optimizer's gradients; see `fused_clipping.clip_norm`.

        With `Fabric.clip_gradients(error_if_nonfinite=False)` it does not wait for the card.
        """
        self.precision.unscale_gradients(optimizer)
        return clip_norm(
            self.precision.main_params(optimizer),
            max_norm,
            norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    @override
    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Makes new tensors on the HPU, in the precision that they are computed in."""
        vendor.seed_if_due()
        context: AbstractContextManager[Any] = super().tensor_init_context()
        return context

    @override
    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Makes new weights on the HPU, in the precision that they are held in."""
        vendor.seed_if_due()
        context: AbstractContextManager[Any] = super().module_init_context(empty_init)
        return context

    def _move(self, module: Module) -> None:
        """Moves a module to the HPU and keeps its tied weights tied.

        A move to an HPU may give the module new parameters. Fabric does not know of that, and an
        optimizer that was made before would go on stepping those on the CPU.
        """
        before = dict(module.named_parameters())
        with kept_tied(module):
            module.to(self.root_device)
        self._note_replaced(before, module)

    def _note_replaced(self, before: Mapping[str, Parameter], module: Module) -> None:
        """Notes the parameters that have taken the place of those that the module had `before`."""
        if self._replaced is None:
            self._replaced = WeakTensorKeyDictionary()
        for name, parameter in module.named_parameters():
            if name in before and parameter is not before[name]:
                self._replaced[before[name]] = parameter

    def _follow(self, optimizer: Optimizer) -> None:
        """Replaces parameters in the optimizer by those that have taken their place."""
        for group in optimizer.param_groups:
            group["params"] = [self._on_hpu(parameter) for parameter in group["params"]]
        # States are keyed by parameters, so they move along.
        for parameter in [*optimizer.state]:
            optimizer.state[self._on_hpu(parameter)] = optimizer.state.pop(parameter)

    def _on_hpu(self, parameter: Tensor) -> Tensor:
        return (self._replaced or {}).get(parameter, parameter)
