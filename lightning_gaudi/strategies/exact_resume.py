"""`ExactResume`, which lets a fit resume as if it had never ended.

A checkpoint holds the random states of each rank's host and the position of each of its loaders;
the strategies add the device's random state. Lightning itself counts steps and epochs. If a
checkpoint was saved in the middle of its loops, it leaves out what was still to do, which is done
here: the validation that was due, the schedulers that wait for it, the end of an epoch, the hook at
its start, and what hooks have changed.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gaudi._core import host_random, progress
from lightning_gaudi._patches.apply import replace
from lightning_gaudi.data.loader_parts import check_order, describe, is_ordinary
from lightning_gaudi.data.position import LoaderPosition
from lightning_gaudi.untrusted import printable

from . import fit_changes, loop_position, optimizer_state
from .loop_position import Place, go_to_next_epoch, go_to_step_end, place_of
from .optimizer_state import gradients, watch_steps

KEY = "exact_resume"
"""The checkpoint's key for what is kept here: plain data and CPU tensors."""

_PATCH = "exact-resume"
_OF_RANK_ZERO = ("pruned", "nested_optimizers")
"""Parts that are large and equal on all ranks, so that rank 0 alone saves them."""
_HAS_NO_POSITION = "{} iterates in a way of its own, and has no state_dict: it begins anew"
_NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"
_ADVICE = (
    "To begin with the weights alone, load them with load_from_checkpoint and fit without "
    "ckpt_path. To resume all the same, with other batches, add "
    "lightning_gaudi.callbacks.Reliability(exact_resume=False) to the Trainer's callbacks."
)


def warn_of_ranks(ranks: tuple[int, int], what: str) -> None:
    """Warns that a fit resumes with another number of ranks."""
    rank_zero_warn(
        f"The checkpoint was saved by {ranks[0]} ranks, and this fit has {ranks[1]}: {what}"
    )


class ExactResume:
    """Saves and restores what one Trainer needs to go on where a checkpoint was saved.

    Args:
        trainer: Its loops are patched, and the loaders that it iterates; see `_patches.register`.
        has_whole_gradients: Whether each rank has whole gradients, which can be saved in the middle
            of an accumulation.
    """

    def __init__(self, trainer: pl.Trainer, *, has_whole_gradients: bool) -> None:
        self.trainer = trainer
        self._has_whole_gradients = has_whole_gradients
        self._pending: Mapping[str, Any] | None = None
        self._num_saved = 1
        self._unfinished: Place | None = None
        self._random: host_random.HostRandom | None = None
        self._accumulated: Mapping[str, Tensor] = {}
        self._at_start: fit_changes.Values | None = None
        self._changed: Mapping[str, Any] = {}
        self._pruned: Mapping[str, Any] = {}
        self._nested: optimizer_state.States = {}
        self._is_to_call_hooks = False
        self._num_stepped = 0
        self._saved: tuple[Place, dict[str, Any]] | None = None
        self._ended: dict[str, Any] | None = None
        self._changed_at_end = ""
        self._marks: list[Any] = []
        self._warned: set[str] = set()
        self._positions: weakref.WeakKeyDictionary[Any, LoaderPosition] = (
            weakref.WeakKeyDictionary()
        )
        # Lightning has no hooks at these places, so the methods of this Trainer's loops are
        # replaced.
        loop = trainer.fit_loop
        for owner, name, ours in (
            (loop, "reset", self._reset),
            (loop, "on_advance_start", self._begin_epoch),
            (loop, "on_advance_end", self._end_epoch),
            (loop, "on_run_end", self._end),
            (loop.epoch_loop, "reset", self._reset_epoch),
            (loop.epoch_loop, "advance", self._advance),
        ):
            replace(_PATCH, owner, name, partial(ours, getattr(owner, name)))

    def watch(self, loader: Any) -> None:
        """Follows the position of a loader, if it is a DataLoader without a state of its own.

        Args:
            loader: What the Trainer is about to iterate.
        """
        if is_ordinary(loader) and loader not in self._positions:
            position = LoaderPosition(loader)
            self._positions[loader] = position
            replace(_PATCH, loader, "_get_iterator", partial(self._iterate, position))

    @property
    def has_ended(self) -> bool:
        """Whether the fit has ended; later checkpoints hold the state at its end."""
        return self._ended is not None

    def release(self) -> None:
        """Leaves the loaders and the optimizers as they were."""
        for mark in self._marks:
            mark.remove()
        self._marks = []
        for loader in self._positions:
            vars(loader).pop("_get_iterator", None)
        self._positions.clear()
        self._pending = None

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of this rank; after a fit, the state at its end."""
        place = place_of(self.trainer)
        self._check_place(place)
        return self._take(place) if self._ended is None else self._ended

    def _take(self, place: Place, *, with_gradients: bool = True) -> dict[str, Any]:
        loop = self.trainer.fit_loop
        if place in (Place.STEP_END, Place.EPOCH_END):
            self._saved = place, self._fingerprint()
        # Lightning's fetcher takes batches ahead, to know which is the last. These, and the one of
        # a step that has not ended, will be taken again.
        behind = len(getattr(loop._data_fetcher, "batches", ())) + (place is Place.IN_STEP)
        loaders = [] if loop._combined_loader is None else loop._combined_loader.flattened
        metrics = self.trainer._logger_connector._callback_metrics
        return {
            "place": place.value,
            "random": host_random.to_tensors(host_random.take()),
            "gradients": self._gradients(place) if with_gradients else {},
            "changed": self._changes(),
            "pruned": fit_changes.take_masks(self.trainer) if self.trainer.is_global_zero else {},
            "nested_optimizers": self._nested_states(),
            "loaders": [self._state_of(loader, behind) for loader in loaders],
            "metrics": {
                name: value.detach().cpu()
                for name, value in metrics.items()
                if isinstance(value, Tensor)
            },
        }

    def load(self, saved: list[Mapping[str, Any]]) -> None:
        """Takes what a checkpoint has kept, to be restored as the loops begin.

        Args:
            saved: What `state` returned on each rank, by rank.
        """
        rank, num_ranks = self.trainer.global_rank, self.trainer.world_size
        self._num_saved = len(saved)
        if len(saved) == num_ranks:
            common = {name: saved[0].get(name, {}) for name in _OF_RANK_ZERO}
            self._pending = {**saved[rank], **common}
            return
        # All ranks are at the same position of the data, so any one's will do. Random states and
        # gradients belong to a rank, and there are more or fewer ranks now.
        loaders = [LoaderPosition.of_any_rank(each) for each in saved[0]["loaders"]]
        self._pending = {**saved[0], "random": None, "loaders": loaders, "gradients": {}}

    def on_train_start(self) -> None:
        """Restores what hooks may have changed since the loops were restored."""
        self._at_start = self._values()
        # Masks first: pruning renames parameters, and what was changed is found by name.
        put, self._pruned = self._pruned, {}
        fit_changes.put_masks(self.trainer, put)
        nested, self._nested = self._nested, {}
        lost = fit_changes.put(self.trainer, self._changed)
        lost += optimizer_state.put(self.trainer.optimizers, nested)
        if lost:
            rank_zero_warn(
                "The checkpoint has what was changed of modules, callbacks and optimizers that "
                f"this fit has not: {printable(', '.join(lost), max_chars=400)}. Resume with the "
                "same ones, or see that these changes are not needed."
            )
        states, self._random = self._random, None
        if states is not None:
            host_random.put(states)
        gradients, self._accumulated = self._accumulated, {}
        for name, parameter in self.trainer.lightning_module.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)

    def _gradients(self, place: Place) -> dict[str, Tensor]:
        are_whole = self._has_whole_gradients
        is_within = place.is_within_epoch
        return gradients(self.trainer, is_within_epoch=is_within, are_whole=are_whole)

    def _nested_states(self) -> optimizer_state.States:
        optimizers = self.trainer.optimizers
        if self._has_whole_gradients:
            return optimizer_state.take(optimizers) if self.trainer.is_global_zero else {}
        for key, each in optimizer_state.nested(optimizers).items():
            if each.state and each not in optimizers:
                self._warn_once(
                    key,
                    f"Optimizer {key} ({type(each).__name__}) is held by another one, and "
                    f"{type(self.trainer.strategy).__name__} saves the outer one's state alone: a "
                    "fit that resumes begins anew with what the inner one keeps.",
                )
        return {}

    def _changes(self) -> fit_changes.Values:
        """Returns the values that differ from those when training began."""
        start = self._at_start
        if start is None:
            return {}
        return {
            key: value
            for key, value in self._values().items()
            if key not in start or start[key] != value
        }

    def _values(self) -> fit_changes.Values:
        return fit_changes.take(self.trainer, has_engine=not self._has_whole_gradients)

    def _check_place(self, place: Place) -> None:
        if place is Place.IN_STEP and self.trainer.global_step != self._num_stepped:
            self._warn_once(
                "within a step",
                f"A checkpoint is saved within step {self.trainer.global_step}, after the "
                "optimizer's step: a fit that resumes takes the batch of this step again. Save in "
                "on_train_batch_end, or later.",
            )
        if place is Place.CUT_SHORT and self._changed_at_end:
            self._warn_once(
                "cut short",
                "The fit had its steps before the epoch had its batches, and its "
                f"on_train_epoch_end has changed {self._changed_at_end}: a fit that resumes from "
                "what is saved now goes on in this epoch, with that. Resume from a checkpoint that "
                "ModelCheckpoint(every_n_train_steps=...) has saved.",
            )

    def _fingerprint(self) -> dict[str, Any]:
        """Returns the values, and the versions of tensors, by which a later change is found."""
        module = self.trainer.lightning_module
        tensors = (*module.named_parameters(), *module.named_buffers())
        # Autograd counts each write to a tensor in `_version`, so nothing is copied or read from
        # the card.
        return {**self._values(), **{name: each._version for name, each in tensors}}

    def _differences(self, then: Mapping[str, Any]) -> str:
        """Returns the names of what has changed since a fingerprint, for a message."""
        now = self._fingerprint()
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return printable(", ".join(names), max_chars=200)

    def _check_hooks(self) -> None:
        """Warns of what hooks have changed after a checkpoint was saved in the same event."""
        if self._saved is None:
            return
        (place, then), self._saved = self._saved, None
        if names := self._differences(then):
            hook = "on_train_batch_end" if place is Place.STEP_END else "on_train_epoch_end"
            self._warn_once(
                hook,
                f"A checkpoint was saved in {hook}, and hooks that came after it have changed "
                f"{names}: a fit that resumes from it goes on without that. Change it in a "
                "callback, which comes before ModelCheckpoint and the module's hook, or in the "
                "step.",
            )

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            rank_zero_warn(message)

    def _state_of(self, loader: Any, behind: int) -> dict[str, Any]:
        position = self._positions.get(loader) if isinstance(loader, DataLoader) else None
        if position is None:
            progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
            return {"taken": progress.processed}
        return {**position.state_dict(behind), "order": describe(loader)}

    def _iterate(self, position: LoaderPosition) -> Any:
        # Lightning makes an iterator in `setup_data`, before the position is known, and its workers
        # would fetch batches for nothing. `_reset` makes the one that counts.
        return iter(()) if self._pending is not None else position.make_iterator()

    def _reset(self, original: Any) -> None:
        saved, self._pending = self._pending, None
        # The Trainer may fit again after an earlier fit has ended.
        self._ended = self._at_start = None
        if not self.trainer.lightning_module.automatic_optimization:
            self._marks = watch_steps(self.trainer.optimizers)
        if saved is not None:
            self._go_on(saved)
        original()

    def _begin_epoch(self, original: Any) -> None:
        self._check_hooks()
        original()
        changed, self._changed = self._changed, {}
        if self._is_to_call_hooks:
            self._is_to_call_hooks = False
            loop_position.call_again(self.trainer)
            # The hook sets what the code sets at the start of each epoch; later changes come after.
            fit_changes.put(self.trainer, changed)

    def _go_on(self, saved: Mapping[str, Any]) -> None:
        loop = self.trainer.fit_loop
        place = Place(saved["place"])
        states = None
        if saved["random"] is not None:
            states = host_random.from_tensors(saved["random"])
            host_random.put(states)
        # Checkpoints that 0.1 saved before November 2026 have none of these.
        self._changed, self._pruned = saved.get("changed", {}), saved.get("pruned", {})
        self._nested = saved.get("nested_optimizers", {})
        device = self.trainer.strategy.root_device
        self.trainer._logger_connector._callback_metrics.update(
            {name: value.to(device) for name, value in saved["metrics"].items()}
        )
        # Lightning's Tuner saves a checkpoint before there are any loaders.
        if saved["loaders"]:
            self._check(saved["loaders"], place)
            self._load_positions(saved["loaders"], within_epoch=place.is_within_epoch)
        self._accumulated = saved["gradients"]
        if place.is_within_epoch:
            self._unfinished = go_to_step_end(self.trainer, place)
            self._is_to_call_hooks = True
            self._iterate_again()
            # Making iterators and calling hooks draws random numbers, so the states are put back
            # once more when training starts.
            self._random = states
        else:
            go_to_next_epoch(self.trainer, place)
            assert loop._combined_loader is not None
            loop._combined_loader.reset()
            # Lightning makes the iterators of later epochs in the epoch loop's `on_run_start`, but
            # that of the first in `setup_data`, before the loaders' states were restored.
            if self.trainer.current_epoch == 0:
                _iterate(loop)
            self._random = host_random.take()

    def _check(self, saved: list[Any], place: Place) -> None:
        """Checks that the loaders are those of the checkpoint, and warns of other ranks."""
        combined = self.trainer.fit_loop._combined_loader
        assert combined is not None
        if len(combined.flattened) != len(saved):
            raise ValueError(
                f"The checkpoint was saved with {len(saved)} loaders for training, and this fit "
                f"has {len(combined.flattened)}. Pass as many, in the same order."
            )
        ranks = self._num_saved, self.trainer.world_size
        if place.is_within_epoch:
            # Loaders with a state of their own check it.
            pairs = [
                (state["order"], describe(loader))
                for loader, state in zip(combined.flattened, saved, strict=True)
                if "created" in state
            ]
            check_order([then for then, _ in pairs], [now for _, now in pairs], ranks, _ADVICE)
        if ranks[0] != ranks[1]:
            warn_of_ranks(
                ranks,
                "the samples come in the order that they would have had, and random numbers, such "
                "as dropout, go on from the current seed."
                if place.is_within_epoch
                else "the next epoch begins anew with the current seed and these ranks' batches.",
            )

    def _load_positions(self, saved: list[Any], *, within_epoch: bool) -> None:
        loop: Any = self.trainer.fit_loop
        loaders = loop._combined_loader.flattened
        for loader, state in zip(loaders, saved, strict=True):
            position = self._positions.get(loader) if isinstance(loader, DataLoader) else None
            if position is None or "created" not in state:
                if within_epoch and not hasattr(loader, "state_dict"):
                    self._warn_of(_HAS_NO_POSITION.format(type(loader).__name__), state["taken"])
                continue
            if within_epoch:
                _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
                self._warn_of(position.reason_against, state["taken"])
            position.load_state_dict(state, within_epoch=within_epoch)

    def _iterate_again(self) -> None:
        """Makes the iterators of the epoch that is resumed."""
        loop = self.trainer.fit_loop
        # Lightning has done so already, unless `configure_optimizers` had the loaders made before
        # the checkpoint was loaded.
        loop._load_combined_loader_states()
        combined = loop._combined_loader
        assert combined is not None
        combined.reset()
        _iterate(loop)

    def _warn_of(self, reason: str | None, taken: int) -> None:
        if reason is not None and taken:
            self._warn_once(
                reason,
                f"The fit resumes after {taken} batches of an epoch, and a loader cannot go on "
                f"exactly there: {reason}.",
            )

    def _end_epoch(self, original: Any) -> None:
        loop = self.trainer.fit_loop.epoch_loop
        is_cut_short = not loop._num_ready_batches_reached()
        then = self._fingerprint() if is_cut_short else {}
        original()
        self._changed_at_end = self._differences(then) if is_cut_short else ""

    def _end(self, original: Any) -> None:
        """Keeps the state at the end of the fit, before callbacks and Lightning clear it up.

        `ModelPruning` makes its masks permanent in `on_train_end`, and the loaders are released.
        """
        self._check_hooks()
        # Sharded gradients cannot be kept; `gradients` warns of that when a checkpoint is saved.
        with_gradients = self._has_whole_gradients
        self._ended = self._take(place_of(self.trainer), with_gradients=with_gradients)
        original()

    def _reset_epoch(self, original: Any) -> None:
        with warnings.catch_warnings():
            # Lightning warns unless each loader has a `state_dict`; ours are restored without one.
            if self._unfinished is not None:
                warnings.filterwarnings("ignore", message=_NOT_RESUMABLE)
            original()

    def _advance(self, original: Any, fetcher: Any) -> None:
        place, self._unfinished = self._unfinished, None
        if place is None:
            self._step(original, fetcher)
            return
        loop = self.trainer.fit_loop
        # Lightning skips hooks and validations while `restarting` is set. What was to be skipped
        # has been, so from here on the loops run as in any other fit.
        loop._restarting = False
        loop.epoch_loop.restarting = False
        if place is not Place.BETWEEN_STEPS:
            loop.epoch_loop._skip_next_val = place is Place.VALIDATED
        elif loop.epoch_loop._num_ready_batches_reached():
            raise StopIteration
        else:
            self._step(original, fetcher)

    def _step(self, original: Any, fetcher: Any) -> None:
        self._num_stepped = self.trainer.global_step
        try:
            original(fetcher)
        except StopIteration:
            self._note_end()
            raise
        self._check_hooks()

    def _note_end(self) -> None:
        """Tells the watchdog that this rank has no more batches, while others may have some."""
        count, epoch = self.trainer.fit_loop.epoch_loop.batch_idx, self.trainer.current_epoch
        progress.enter(f"out of batches in epoch {epoch} after {count + 1}", is_training=True)


def _iterate(loop: Any) -> None:
    iter(loop._data_fetcher)
