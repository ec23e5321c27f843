"""Where a loader stands: the epoch, and how many of its batches were taken."""

from __future__ import annotations

__all__ = ["EpochProgress"]


class EpochProgress:
    """Counts epochs and batches, and resumes them whoever names the epochs.

    Attributes:
        epoch: the epoch, which the order of the batches depends on.
        position: batches of it that were taken.
        start: where the next iteration starts: 0, but once after `load`.
    """

    def __init__(self) -> None:
        self.epoch = self.position = self.start = 0
        self._named = 0  # the number that set_epoch was last given
        self._offset = 0  # from that number to `epoch`
        self._num_batches = 0  # of an epoch, after `load`
        self._is_resuming = False  # a state was loaded, and its epoch not named yet
        self._is_bound = False  # and an iterator was made for it already
        self._may_be_cut = False

    def load(self, epoch: int, position: int, num_batches: int) -> None:
        """Goes on with batch `position` of an epoch of `num_batches`."""
        self.epoch, self.start, self.position = epoch, position, position
        self._num_batches, self._offset = num_batches, 0
        self._is_resuming, self._is_bound, self._may_be_cut = True, False, False

    def bind(self) -> None:
        """An iterator is made. On resuming, a Trainer does so before it names the epoch."""
        self._is_bound = self._is_resuming

    def begin(self) -> int:
        """An iteration starts with the batch that this returns."""
        start, self.start = self.start, 0
        return start

    def set_epoch(self, number: int) -> None:
        """Name the coming epoch.

        The first call after `load` names the epoch that was loaded, if it has batches left, and
        further calls count from there: Fabric counts epochs from 0 in each run, and Lightning
        takes an epoch that `max_steps` cut short for a finished one.
        """
        if self._is_resuming:
            self._is_resuming = False
            is_finished = self.start >= self._num_batches and number != self.epoch
            self._offset = self.epoch + int(is_finished) - number
            self._may_be_cut = is_finished and self._is_bound
        elif number < self._named:  # a new run
            self._offset, self._may_be_cut = 0, False
        elif self._may_be_cut:
            # Resumed at the end of an epoch, a Trainer with max_steps takes one batch for another
            # epoch (lightning/pytorch/loops/training_epoch_loop.py, done). Go on behind it. Delete
            # once Lightning resets its count of batches there.
            self._may_be_cut = False
            if self.position == 1 < self._num_batches:
                self._offset, self.start = self.epoch - number, 1
        self._named = number
        if number + self._offset != self.epoch:
            self.epoch, self.start, self.position = number + self._offset, 0, 0
