"""`HPUStrategy`: what training on an HPU is, whatever the number of cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core import progress, vendor
from lightning_gaudi._core.rank_monitor import say
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._core.untrusted import printable
from lightning_gaudi.compilation.double_backward import explained
from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.reliability import memory, notes
from lightning_gaudi.reliability.finite import MAX_STEPS

from ..checkpoint.io import HPUCheckpointIO
from ..checkpoint.rng import KEY as RNG_STATE, restore_rng_state
from ..checkpoint.snapshot import HostMemory
from ..distributed.strategy import HPUMixin
from ..precision.plugin import HPUPrecisionPlugin
from .auto_resume import AutoResume
from .compiled_steps import CompiledSteps
from .exact_resume import KEY as EXACT_RESUME, ExactResume, warn_of_ranks
from .resuming import why_not_remove
from .signals import Ending, forget_loaders_not_begun

_Value = TypeVar("_Value")


class HPUStrategy(AutoResume, HPUMixin):
    """The base of the Trainer's strategies, beside the one of Lightning's that each extends.

    Beside a training step, each step of an evaluation is a graph in the vendor's lazy mode.
    """

    precision_kind: type[Precision] = HPUPrecisionPlugin
    """The plugin that computes in the precision asked for by name."""

    has_whole_gradients = True
    """Whether `Parameter.grad` is the gradient of this rank's batches, of all of a parameter."""

    _checkpoint_io: CheckpointIO | None

    # States of the device's generator: a checkpoint's, and what the sanity check shall not change.
    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _rng_state_at_start: Tensor | list[Tensor] | None = None
    _rng_state_before_check: Tensor | None = None
    _has_remains = False
    _exact_resume: ExactResume | None = None
    _ending: Ending | None = None

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Sets up the model, compiles what is to be compiled of it, and is ready for signals."""
        assert self.lightning_module is not None
        self._uncompile()
        self._to_resume()  # before the loops run
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            _check_averages(trainer)
        self._compile(self.lightning_module, with_root=False)
        self._losses, self._first_step = None, self._num_steps
        self._ending = Ending(trainer, saves=self.reliability.save_on_exit)

    def _compile_whole(self, module: Module, compilation: Compilation) -> Any:
        return CompiledSteps(module, compilation)

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """What reads and writes checkpoints."""
        if self._checkpoint_io is None:
            self._checkpoint_io = HPUCheckpointIO()
        elif isinstance(self._checkpoint_io, _WrappingCheckpointIO):
            self._checkpoint_io.checkpoint_io = HPUCheckpointIO()
        if isinstance(self._checkpoint_io, HPUCheckpointIO):
            # One process of a machine compares, and tells the others.
            is_first = getattr(self, "local_rank", 0) == 0
            self._checkpoint_io.switch_verify(is_first and self.reliability.verify_checkpoints)
        return self._checkpoint_io

    @checkpoint_io.setter
    @override
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    def start_async_save(self) -> None:
        """Writes checkpoints while training goes on, if that is asked for.

        Raises:
            MisconfigurationException: They cannot be.
        """
        if not self.reliability.async_save:
            return
        if not isinstance(self.checkpoint_io, HPUCheckpointIO):
            raise MisconfigurationException(
                f"async_save=True is for HPUCheckpointIO, and Trainer(plugins=...) has "
                f"{type(self.checkpoint_io).__name__}. Leave out one of them."
            )
        self.checkpoint_io.start_background(self._group_for_saving())

    def _group_for_saving(self) -> Any:
        """Returns the group of ranks that write checkpoints while they train, or None."""
        return None

    def _write(self, prepare: Callable[[HostMemory | None], Callable[[], None]]) -> None:
        """Writes what all ranks write together; see `HPUCheckpointIO.write`."""
        if isinstance(self.checkpoint_io, HPUCheckpointIO):
            self.checkpoint_io.write(prepare)
        else:
            prepare(None)()

    @property
    def _copies_to_save(self) -> bool:
        """Whether what is saved is copied to be written later."""
        return (
            isinstance(self._checkpoint_io, HPUCheckpointIO) and self._checkpoint_io.is_background
        )

    def _end_async_save(self) -> None:
        if isinstance(self._checkpoint_io, HPUCheckpointIO):
            self._checkpoint_io.stop_background()

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Runs backward."""
        self._note_loss(args[0] if args else kwargs["closure_loss"])
        self._note_place("backward")
        with explained():
            loss: Tensor = super().backward(*args, **kwargs)
        return loss

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cuts the graph after backward."""
        self._end_of_graph()
        self._note_place("optimizer step")

    @override
    def _note_step(self) -> None:
        self._num_steps = self.lightning_module.trainer.global_step
        super()._note_step()

    @override
    def _reads_losses(self) -> bool:
        # Where Lightning reads metrics anyway, but not much later.
        every = self.lightning_module.trainer.log_every_n_steps
        return bool(self._num_steps % min(every or MAX_STEPS, MAX_STEPS) == 0)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """One step of the evaluation, one graph: batches do not pile up until a metric is read."""
        output: STEP_OUTPUT = super().validation_step(*args, **kwargs)
        self._end_of_graph()
        return output

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> STEP_OUTPUT:
        """See `validation_step`."""
        output: STEP_OUTPUT = super().test_step(*args, **kwargs)
        self._end_of_graph()
        return output

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """See `validation_step`."""
        output = super().predict_step(*args, **kwargs)
        self._end_of_graph()
        return output

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves the checkpoint, with what an exact resume needs, unless a loss is not finite."""
        self._check_losses()
        self._add_resume_state(checkpoint)
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    @override
    def remove_checkpoint(self, filepath: _PATH) -> None:
        """Removes a checkpoint that a callback has no more use for, in the folder that it has."""
        reason = why_not_remove(self.lightning_module.trainer, filepath)
        if reason is None:
            super().remove_checkpoint(filepath)
            return
        rank_zero_warn(
            f"{printable(filepath)} stays, which this fit, or the checkpoint that it went on from, "
            f"wants to be removed: {printable(reason)}. Remove it yourself if it is yours."
        )

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the optimizers; this happens only where fitting resumes."""
        super().load_optimizer_state_dict(checkpoint)
        self._load_resume_state(checkpoint)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """See `HPUMixin`; in a fit, what is taken from it is counted."""
        loader: object = super().process_dataloader(dataloader)
        resume = self._to_resume()
        if resume is not None:
            resume.watch(loader)
        return loader

    @override
    def on_validation_start(self) -> None:
        """Keeps the random state: as on other devices, the sanity check leaves no trace in it."""
        progress.enter("validation", is_training=False)
        super().on_validation_start()
        module = self.lightning_module
        if module is not None and module.trainer.sanity_checking:
            self._rng_state_before_check = vendor.get_rng_state()

    @override
    def on_validation_end(self) -> None:
        """Undo the sanity check's draws; the metrics of any validation leave operations behind."""
        super().on_validation_end()
        self._note_place("after a validation")
        self._has_remains = True
        # Here and not when training starts: what a user's hook seeds there has to stay.
        state, self._rng_state_before_check = self._rng_state_before_check, None
        if state is not None:
            vendor.set_rng_state(state)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Cuts off what an epoch or a validation left: the step is the graph that it always is."""
        super().on_train_batch_start(batch, batch_idx)
        if isinstance(self._checkpoint_io, HPUCheckpointIO):
            self._checkpoint_io.check_background()
        if self._has_remains or batch_idx == 0:
            self._has_remains = False
            self._end_of_graph()
        if self._ending is not None:
            self._ending.before_step()
        step = self.lightning_module.trainer.global_step + 1
        self._note_place("forward", step, new_batch=True)

    @override
    def on_train_start(self) -> None:
        """Goes on with the random numbers that a checkpoint interrupted."""
        super().on_train_start()
        if self._ending is not None:
            self._ending.take_sigint()
        self._num_steps = self._first_step = self.lightning_module.trainer.global_step
        state, self._rng_state_at_start = self._rng_state_at_start, None
        if state is not None:
            trainer = self.lightning_module.trainer
            restore_rng_state(state, rank=trainer.global_rank, world_size=trainer.world_size)
        resume = self._to_resume()
        if resume is not None:
            resume.on_train_start()

    @override
    def on_train_end(self) -> None:
        """Look at the losses since the last log step; wait until the last checkpoint is on disk."""
        progress.enter("the end of the fit", is_training=False)
        super().on_train_end()
        self._check_losses()
        self._end_async_save()
        if self._ending is not None:
            self._ending.release_sigint()

    @override
    def on_exception(self, exception: BaseException) -> None:
        """Saves a fit that a signal ends; says what an error means, such as what fills a card."""
        super().on_exception(exception)
        # The process that waits for spawned ranks has none.
        if (trainer := getattr(self.lightning_module, "_trainer", None)) is not None:
            forget_loaders_not_begun(trainer)
        if memory.is_out_of_memory(exception):
            found = memory.report(self.model, self.optimizers)
            say(f"[rank: {self.global_rank}] out of memory: {found}")
        said = notes.explain(exception, holds_card=vendor.is_initialized())
        if said is not None and hasattr(exception, "add_note"):  # since Python 3.11
            exception.add_note(said)
        if self._ending is not None and isinstance(exception, SIGTERMException):
            self._ending.end(exception)

    @override
    def teardown(self) -> None:
        """Moves the model to the CPU, with its tied weights tied, and as it was written."""
        self._uncompile()
        if self._exact_resume is not None:
            self._exact_resume.release()
        if self._ending is not None:
            self._ending.release_sigint()
        try:
            self._end_async_save()  # where the fit has failed
        finally:
            with kept_tied(self.lightning_module):
                super().teardown()

    def _to_resume(self) -> ExactResume | None:
        """What goes on exactly in this fit; None where nobody fits, or it is switched off."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        if trainer.state.fn != TrainerFn.FITTING or not self.reliability.exact_resume:
            return None
        if self._exact_resume is None or self._exact_resume.trainer is not trainer:
            self._exact_resume = ExactResume(trainer, has_whole_gradients=self.has_whole_gradients)
        return self._exact_resume

    def _add_resume_state(self, checkpoint: dict[str, Any]) -> None:
        """Puts the random states, and where the data are, of all ranks into a checkpoint."""
        checkpoint[RNG_STATE] = self._rng_state()
        resume = self._to_resume()
        if resume is None and self._exact_resume is not None and self._exact_resume.has_ended:
            resume = self._exact_resume  # saved after the fit, and a validation or the like
        if resume is not None and "optimizer_states" in checkpoint:
            checkpoint[EXACT_RESUME] = {"ranks": self._of_all_ranks(resume.state())}

    def _load_resume_state(self, checkpoint: Mapping[str, Any]) -> None:
        """Keeps what `_add_resume_state` has saved until the fit begins."""
        self._rng_state_at_start = checkpoint.get(RNG_STATE)
        resume, saved = self._to_resume(), checkpoint.get(EXACT_RESUME)
        if saved is None:
            return
        num_ranks = self.lightning_module.trainer.world_size
        if resume is not None:
            resume.load(saved["ranks"])
        elif len(saved["ranks"]) != num_ranks:
            warn_of_ranks(
                (len(saved["ranks"]), num_ranks), "exact_resume is off, so batches differ."
            )

    def _rng_state(self) -> Tensor | list[Tensor]:
        """Returns the state of this process's generator, or of all ranks' by rank."""
        return vendor.get_rng_state()

    def _of_all_ranks(self, value: _Value) -> list[_Value]:
        """Returns a value of each rank, by rank."""
        return [value]


def _check_averages(trainer: pl.Trainer) -> None:
    """Refuses callbacks that average whole weights where a rank holds parts of them.

    Those of Lightning copy the module before it is sharded; the first average would end in an error
    of sizes, or take parts for whole weights.
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
    """Returns the shapes of the weights, and their kinds: that of a DTensor is of all its parts."""
    return [(weight.shape, type(weight.data)) for weight in module.parameters()]
