"""`HPUStrategy`: what training on an HPU is, whatever the number of cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi.compilation.double_backward import explained
from lightning_gaudi.compilation.settings import Compilation

from ..checkpoint.io import HPUCheckpointIO
from ..checkpoint.rng import KEY as RNG_STATE, restore_rng_state
from ..distributed.strategy import HPUMixin
from ..precision.plugin import HPUPrecisionPlugin
from .auto_resume import AutoResume
from .compiled_steps import CompiledSteps


class HPUStrategy(AutoResume, HPUMixin):
    """The base of the Trainer's strategies, beside the one of Lightning's that each extends.

    Beside a training step, each step of an evaluation is a graph in the vendor's lazy mode.
    """

    precision_kind: type[Precision] = HPUPrecisionPlugin
    """The plugin that computes in the precision asked for by name."""

    _checkpoint_io: CheckpointIO | None

    # States of the device's generator: a checkpoint's, and what the sanity check shall not change.
    # Class attributes, since an instance of Lightning's own strategy may have become one of ours.
    _rng_state_at_start: Tensor | list[Tensor] | None = None
    _rng_state_before_check: Tensor | None = None
    _has_remains = False

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Set up the model, and compile what is to be compiled of it."""
        assert self.lightning_module is not None
        self._uncompile()
        super().setup(trainer)
        self._compile(self.lightning_module, with_root=False)

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
        return self._checkpoint_io

    @checkpoint_io.setter
    @override
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def backward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run backward."""
        with explained():
            loss: Tensor = super().backward(*args, **kwargs)
        return loss

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        """Cut the graph after backward."""
        self._end_of_graph()

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
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Save the checkpoint, with the state of the device's generator."""
        checkpoint[RNG_STATE] = self._rng_state()
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the optimizers; this happens only where fitting resumes."""
        super().load_optimizer_state_dict(checkpoint)
        self._rng_state_at_start = checkpoint.get(RNG_STATE)

    @override
    def on_validation_start(self) -> None:
        """Keep the random state: as on other devices, the sanity check leaves no trace in it."""
        super().on_validation_start()
        module = self.lightning_module
        if module is not None and module.trainer.sanity_checking:
            self._rng_state_before_check = vendor.get_rng_state()

    @override
    def on_validation_end(self) -> None:
        """Undo the sanity check's draws; the metrics of any validation leave operations behind."""
        super().on_validation_end()
        self._has_remains = True
        # Here and not when training starts: what a user's hook seeds there has to stay.
        state, self._rng_state_before_check = self._rng_state_before_check, None
        if state is not None:
            vendor.set_rng_state(state)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Cut off what an epoch or a validation left: the step is the graph that it always is."""
        super().on_train_batch_start(batch, batch_idx)
        if self._has_remains or batch_idx == 0:
            self._has_remains = False
            self._end_of_graph()

    @override
    def on_train_start(self) -> None:
        """Go on with the random numbers that a checkpoint interrupted."""
        super().on_train_start()
        state, self._rng_state_at_start = self._rng_state_at_start, None
        if state is not None:
            trainer = self.lightning_module.trainer
            restore_rng_state(state, rank=trainer.global_rank, world_size=trainer.world_size)

    @override
    def teardown(self) -> None:
        """Move the model to the CPU, with its tied weights tied, and as it was written."""
        self._uncompile()
        with kept_tied(self.lightning_module):
            super().teardown()

    def _rng_state(self) -> Tensor | list[Tensor]:
        """The state of this process's generator, or of all ranks' by rank."""
        return vendor.get_rng_state()
