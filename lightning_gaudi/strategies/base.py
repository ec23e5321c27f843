"""`HPUStrategy`, the base of the Trainer's strategies for any number of cards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.seed import reset_seed
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core import collectives, progress, vendor
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._patches.apply import replace
from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.reliability.finite import MAX_STEPS
from lightning_gaudi.reliability.guard import Part
from lightning_gaudi.reliability.settings import as_told
from lightning_gaudi.untrusted import printable

from ..checkpoint.errors import damage_on_all_ranks
from ..checkpoint.io import HPUCheckpointIO
from ..distributed import process_group
from ..distributed.strategy import HPUMixin
from ..precision.plugin import HPUPrecisionPlugin
from .launchers import HPUScriptLauncher, HPUSpawnLauncher
from .parts import AsyncSaves, DeviceRandom, Resuming, SharedMemoryHint
from .resuming import AutoResume, why_not_remove
from .signals import Ending, forget_loaders_not_begun


def _compile_steps(module: Module, compilation: Compilation) -> Any:
    from .compiled_steps import CompiledSteps  # needed by compile="model" alone

    return CompiledSteps(module, compilation)


# A mixin, and no subclass of Lightning's `Strategy`: it comes before the one that each strategy
# extends, so that `super()` leads there.
class HPUStrategy(HPUMixin):
    """The base of the Trainer's strategies, beside the one of Lightning's that each extends.

    Lightning calls its hooks, and they tell `guard` what happens. Beside a training step, each step
    of an evaluation is a graph in the vendor's lazy mode.
    """

    compile_whole = staticmethod(_compile_steps)
    script_launcher = HPUScriptLauncher
    spawn_launcher = HPUSpawnLauncher

    precision_kind: type[Precision] = HPUPrecisionPlugin
    """The class of the precision plugin for a precision given by name."""

    has_whole_gradients = True
    """Whether `Parameter.grad` is a whole gradient, of this rank's batches, and not a shard."""

    writes_together = False
    """Whether all ranks write a checkpoint, and not the first one alone."""

    _checkpoint_io: CheckpointIO | None

    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _rng_state_before_check: Tensor | None = None
    _has_remains = False

    @cached_property
    def saving(self) -> AsyncSaves:
        """The part that writes checkpoints while training goes on."""
        return AsyncSaves(self)

    @cached_property
    def auto_resume(self) -> AutoResume:
        """The part that finds the checkpoint of a job that is started again."""
        return AutoResume(self)

    def _parts(self) -> tuple[Part, ...]:
        # In this order: a fit has ended only when its last checkpoint is on disk, so `auto_resume`
        # notes the end after `saving` has waited for it.
        saving = self.saving, self.auto_resume
        return DeviceRandom(self), Resuming(self), *saving, SharedMemoryHint(), Ending(self)

    @property
    @override
    def steps_per_look(self) -> int:  # type: ignore[override]
        """After how many steps losses are looked at: where Lightning reads metrics anyway."""
        every = self.lightning_module.trainer.log_every_n_steps
        return min(every or MAX_STEPS, MAX_STEPS)

    def _number_ranks(self) -> None:
        reset_seed()
        self.set_world_ranks()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Sets up the model, compiles what is to be compiled of it, and is ready for signals."""
        assert self.lightning_module is not None
        if self.is_ranked:
            # The group was made before `setup`, when the `Reliability` callback had not been heard
            # yet.
            process_group.adapt(self.reliability, self._timeout)
        # The same module may come compiled from a run before; it is wrapped and moved uncompiled.
        self.compiler.remove()
        self.guard.begin()
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            _check_averages(trainer)
            _leave_losses_whole(trainer)
            _step_shards_by_kernel(self, True)
        # After the wrapping, so that what is compiled are the layers as they will run.
        self.compiler.compile(self.lightning_module, with_root=False)

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """What reads and writes checkpoints."""
        if self._checkpoint_io is None:
            self._checkpoint_io = HPUCheckpointIO()
        elif isinstance(self._checkpoint_io, _WrappingCheckpointIO):
            self._checkpoint_io.checkpoint_io = HPUCheckpointIO()
        if isinstance(self._checkpoint_io, HPUCheckpointIO):
            # The processes of a machine read the same file: one computes its checksum, and a
            # damaged file is raised on all ranks (`load_checkpoint`).
            is_first = getattr(self, "local_rank", 0) == 0
            self._checkpoint_io.switch_verify(is_first and self.reliability.verify_checkpoints)
        return self._checkpoint_io

    @checkpoint_io.setter
    @override
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the backward pass, and hands the loss to the guard."""
        self.guard.loss(args[0] if args else kwargs["closure_loss"])
        self.guard.note("backward")
        with self.compiler.explaining():
            loss: Tensor = super().backward(*args, **kwargs)
        return loss

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cuts the graph after backward."""
        vendor.end_graph()
        self.guard.note("optimizer step")

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """Runs a step of the evaluation as a graph, so that batches do not pile up."""
        output: STEP_OUTPUT = super().validation_step(*args, **kwargs)
        vendor.end_graph()
        return output

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """See `validation_step`."""
        output: STEP_OUTPUT = super().test_step(*args, **kwargs)
        vendor.end_graph()
        return output

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """See `validation_step`."""
        output = super().predict_step(*args, **kwargs)
        vendor.end_graph()
        return output

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves the checkpoint, with what an exact resume needs, unless a loss is not finite."""
        self.guard.save(checkpoint)
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    @override
    @as_told
    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads a checkpoint as far as it is trusted; all ranks refuse a damaged one."""
        with damage_on_all_ranks() if self.is_ranked else nullcontext():
            checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return checkpoint

    @override
    def remove_checkpoint(self, filepath: _PATH) -> None:
        """Removes a checkpoint that a callback has no more use for, in the folder that it has."""
        reason = why_not_remove(self.lightning_module.trainer, filepath)
        if reason is None:
            super().remove_checkpoint(filepath)
            return
        rank_zero_warn(
            f"{printable(filepath)} is not removed, although this fit, or the checkpoint that it "
            f"went on from, asks for it: {printable(reason)}. Remove it yourself if it is yours."
        )

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the optimizers; this happens only where fitting resumes."""
        super().load_optimizer_state_dict(checkpoint)
        self.guard.load(checkpoint)

    @override
    def on_validation_start(self) -> None:
        """Keeps the random state: as on other devices, the sanity check leaves no trace in it."""
        progress.enter("validation", is_training=False)
        super().on_validation_start()
        module = self.lightning_module
        if module is not None and module.trainer.sanity_checking:
            self._rng_state_before_check = vendor.get_rng_state()
        if self.is_ranked and module.trainer.state.fn == TrainerFn.FITTING:
            # A rank with fewer batches would otherwise meet the collectives of another's training
            # steps with those of its validation.
            collectives.meet_for_validation()

    @override
    def on_validation_end(self) -> None:
        """Undoes the draws of the sanity check."""
        super().on_validation_end()
        self.guard.note("after a validation")
        # The metrics of a validation leave operations that no graph has run yet; see
        # `on_train_batch_start`.
        self._has_remains = True
        # Restored here and not when training starts, since a user's hook may seed there.
        state, self._rng_state_before_check = self._rng_state_before_check, None
        if state is not None:
            vendor.set_rng_state(state)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Ends the graph of what came before, so that each step is the same graph."""
        super().on_train_batch_start(batch, batch_idx)
        # In lazy mode operations collect until a graph ends. Those of a validation or of an epoch's
        # start would become part of the first step, whose graph would then be compiled for this
        # once.
        if self._has_remains or batch_idx == 0:
            self._has_remains = False
            vendor.end_graph()
        self.guard.batch(self.lightning_module.trainer.global_step)

    @override
    def on_train_start(self) -> None:
        """Starts the parts of the guard, which put back what a checkpoint has kept."""
        super().on_train_start()
        self.guard.start(self.lightning_module.trainer.global_step)

    @override
    def on_train_end(self) -> None:
        """Checks the losses since the last log step, and waits for the last checkpoint."""
        progress.enter("the end of the fit", is_training=False)
        super().on_train_end()
        self.guard.end()

    @override
    def on_exception(self, exception: BaseException) -> None:
        """Explains an error, such as a full card, and saves a fit that a signal ends."""
        super().on_exception(exception)
        # The process that only waits for spawned ranks has no trainer attached to its module.
        if (trainer := getattr(self.lightning_module, "_trainer", None)) is not None:
            forget_loaders_not_begun(trainer)
        from lightning_gaudi.reliability import notes  # imported only when a run fails

        notes.tell(exception, self.model, self.optimizers, rank=self.global_rank)
        self.guard.exception(exception)

    @override
    def teardown(self) -> None:
        """Moves the model to the CPU, uncompiled and with its tied weights tied."""
        self.compiler.remove()
        _step_shards_by_kernel(self, False)
        try:
            self.guard.close()
        finally:
            with kept_tied(self.lightning_module):
                super().teardown()


def _step_shards_by_kernel(strategy: HPUStrategy, is_wanted: bool) -> None:
    """Has Adam step shards by the card's kernel, or not any more; whole weights never."""
    if not strategy.has_whole_weights:
        from lightning_gaudi._patches.optimizers import step_adam_by_kernel

        step_adam_by_kernel(is_wanted)


class _WholeLoss(ClosureResult):
    """A step's loss, which is divided by the number of accumulated batches only if that is not 1.

    Lightning always divides (2.6, `loops/optimization/automatic.py`): a launch for a division by 1,
    and another one in backward.
    """

    @classmethod
    @override
    def from_training_step_output(
        cls, training_step_output: STEP_OUTPUT, normalize: int = 1
    ) -> ClosureResult:
        output, extra = training_step_output, {}
        if isinstance(output, Mapping):
            extra = {name: value for name, value in output.items() if name != "loss"}
            output = output.get("loss")
        if normalize == 1 and isinstance(output, Tensor):
            return cls(output, extra=extra)
        return super().from_training_step_output(training_step_output, normalize)


def _leave_losses_whole(trainer: pl.Trainer) -> None:
    loop = trainer.fit_loop.epoch_loop.automatic_optimization
    if loop.output_result_cls is ClosureResult:
        replace("whole-losses", loop, "output_result_cls", _WholeLoss)


def _check_averages(trainer: pl.Trainer) -> None:
    """Refuses callbacks that average whole weights if a rank holds only shards of them.

    Lightning's `WeightAveraging` copies the module before it is sharded. The first average would
    fail with an error of sizes, or take shards for whole weights.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        copied = getattr(getattr(callback, "_average_model", None), "module", None)
        if not isinstance(copied, Module):
            continue
        if _shapes(copied) != _shapes(trainer.lightning_module):
            raise MisconfigurationException(
                f"{type(callback).__name__} averages whole weights, but "
                f"{type(trainer.strategy).__name__} leaves each rank parts of them. Train with "
                "strategy='ddp' or 'deepspeed_stage_2', or without the callback."
            )


def _shapes(module: Module) -> list[Any]:
    """Returns the shapes and types of the weights; a DTensor gives the shape of the whole."""
    return [(weight.shape, type(weight.data)) for weight in module.parameters()]
