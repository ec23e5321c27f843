"""The parts of a Trainer's `RunGuard` that save and restore, and one that explains an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_gaudi._core import collectives, vendor
from lightning_gaudi._core.processes.rank_monitor import say
from lightning_gaudi.reliability.guard import Part

from ..checkpoint.io import HPUCheckpointIO
from .exact_resume import KEY as EXACT_RESUME, ExactResume, warn_of_ranks

if TYPE_CHECKING:
    from ..checkpoint.snapshot import HostMemory


_RNG_STATE = "hpu_rng_state"
"""A checkpoint's key for the state of the device's generator, a CPU tensor of bytes; a list of them
by rank where several ranks trained."""


class DeviceRandom(Part):
    """Saves and restores the random state of each rank's device.

    A resumed run then draws the same dropout as an uninterrupted one.

    Args:
        strategy: Of the Trainer.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._saved: Tensor | list[Tensor] | None = None

    def save(self, state: dict[str, Any]) -> None:
        """Adds the state of this process's generator, or those of all ranks."""
        own = vendor.get_rng_state()
        strategy = self._strategy
        state[_RNG_STATE] = strategy.of_all_ranks(own) if strategy.is_ranked else own

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes the saved state, to be set when training starts."""
        self._saved = state.get(_RNG_STATE)

    def start(self) -> None:
        """Sets the generator to the saved state."""
        # Not when the checkpoint is loaded: setting up loaders and the sanity check draw numbers
        # after that.
        saved, self._saved = self._saved, None
        if saved is not None:
            trainer = self._strategy.lightning_module.trainer
            _restore_rng_state(saved, rank=trainer.global_rank, world_size=trainer.world_size)


def _restore_rng_state(saved: Tensor | list[Tensor], *, rank: int, world_size: int) -> None:
    """Sets the device's generator to the state of this rank, or warns why that is not possible."""
    states = saved if isinstance(saved, list) else [saved]
    if len(states) != world_size:
        _warn_of_rng_state(f"was saved by {len(states)} ranks, and this run has {world_size}")
        return
    try:
        vendor.set_rng_state(states[rank])
    except (RuntimeError, ValueError, TypeError) as error:
        _warn_of_rng_state(f"is of another kind of HPU ({error})")


def _warn_of_rng_state(reason: str) -> None:
    rank_zero_warn(
        f"The checkpoint's random state {reason}: random numbers on the device, such as "
        "dropout, go on from the current seed instead."
    )


class Resuming(Part):
    """Lets a fit resume as if it had never ended (`exact_resume`); see `ExactResume`.

    Args:
        strategy: Of the Trainer.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._resume: ExactResume | None = None

    def of_fit(self) -> ExactResume | None:
        """Returns the `ExactResume` of this fit; None without a fit, or if it is switched off."""
        strategy = self._strategy
        trainer = strategy.lightning_module.trainer
        if trainer.state.fn != TrainerFn.FITTING or not strategy.reliability.exact_resume:
            return None
        if self._resume is None or self._resume.trainer is not trainer:
            are_whole = strategy.has_whole_gradients
            self._resume = ExactResume(trainer, has_whole_gradients=are_whole)
        return self._resume

    def begin(self) -> None:
        """Patches the loops before they run."""
        self.of_fit()

    def loader(self, loader: Any) -> None:
        """Follows the position of a loader."""
        if (resume := self.of_fit()) is not None:
            resume.watch(loader)

    def start(self) -> None:
        """Restores what was saved."""
        if (resume := self.of_fit()) is not None:
            resume.on_train_start()

    def save(self, state: dict[str, Any]) -> None:
        """Adds the host's random states and the positions in the data, of all ranks."""
        resume = self.of_fit()
        if resume is None and self._resume is not None and self._resume.has_ended:
            # `Trainer.save_checkpoint` after the fit, with a validation or test in between.
            resume = self._resume
        if resume is not None and "optimizer_states" in state:
            state[EXACT_RESUME] = {"ranks": self._strategy.of_all_ranks(resume.state())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes what was saved, to be restored when the loops run."""
        resume, saved = self.of_fit(), state.get(EXACT_RESUME)
        if saved is None:
            return
        num_ranks = self._strategy.lightning_module.trainer.world_size
        if resume is not None:
            resume.load(saved["ranks"])
        elif len(saved["ranks"]) != num_ranks:
            warn_of_ranks(
                (len(saved["ranks"]), num_ranks), "exact_resume is off, so batches differ."
            )

    def close(self) -> None:
        """Leaves the loaders and the optimizers as they were."""
        if self._resume is not None:
            self._resume.release()


class SharedMemoryHint(Part):
    """Says what to do if the workers of a DataLoader have filled the shared memory.

    A container has 64 MiB of it unless it asks for more, and torch only says what it could not
    allocate.
    """

    _WORDS = ("unable to allocate shared memory", "out of shared memory", "Bus error")
    _FOLDER = "/dev/shm"

    def exception(self, exception: BaseException) -> None:
        """Looks for torch's words in the error."""
        if not any(word in str(exception) for word in self._WORDS):
            return
        status = os.statvfs(self._FOLDER)
        say(
            f"{self._FOLDER}, through which workers of a DataLoader hand over batches, has "
            f"{status.f_blocks * status.f_frsize / 2**20:.0f} MiB. On Kubernetes mount an emptyDir "
            "of medium Memory there, start a container with --ipc=host or --shm-size, or use "
            "smaller batches, fewer workers or num_workers=0"
        )


class AsyncSaves(Part):
    """Writes checkpoints while training goes on, if `async_save` asks for it.

    Args:
        strategy: Of the Trainer.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._io: HPUCheckpointIO | None = None

    def switch_on(self) -> None:
        """Starts the thread that writes; all ranks call this when they are connected.

        Raises:
            MisconfigurationException: A checkpoint plugin of the user's writes them.
        """
        strategy = self._strategy
        if not strategy.reliability.async_save:
            return
        io = strategy.checkpoint_io
        if not isinstance(io, HPUCheckpointIO):
            raise MisconfigurationException(
                f"async_save=True is for HPUCheckpointIO, and Trainer(plugins=...) has "
                f"{type(io).__name__}. Leave out one of them."
            )
        is_together = strategy.writes_together
        io.start_background(collectives.group_apart(strategy._timeout) if is_together else None)
        self._io = io

    @property
    def is_background(self) -> bool:
        """Whether a state that is saved is copied now and written later."""
        return self._io is not None and self._io.is_background

    def write(self, prepare: Callable[[HostMemory | None], Callable[[], None]]) -> None:
        """Writes a checkpoint that all ranks write together; see `HPUCheckpointIO.write`."""
        io = self._strategy.checkpoint_io
        if isinstance(io, HPUCheckpointIO):
            io.write(prepare)
        else:
            prepare(None)()

    def batch(self) -> None:
        """Raises an error of the thread that writes, if there was one."""
        if self._io is not None:
            self._io.check_background()

    def end(self) -> None:
        """Waits until the last checkpoint is on disk."""
        io, self._io = self._io, None
        if io is not None:
            io.stop_background()

    close = end
