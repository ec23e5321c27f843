"""A thread that writes checkpoints while training goes on, and removes the ones they replace."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs tasks in one thread, in order, and keeps the first error until somebody asks.

    The interpreter waits for all of them before it exits.
    """

    def __init__(self) -> None:
        # One thread, so that what removes an old checkpoint never overtakes what writes the new
        # one.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: list[Future[None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether all is done, well or not."""
        return all(each.done() for each in self._pending)

    def save(self, write: Callable[[], None]) -> None:
        """Waits for earlier tasks, raises their first error, and hands `write` to the thread.

        Args:
            write: Writes what nobody changes any more.
        """
        self.wait()
        self._pending.append(self._pool.submit(write))

    def remove(self, remove: Callable[[], None]) -> None:
        """Removes something once all that is on its way is on disk, and not if that fails."""
        if not self._pending:
            remove()
            return
        # A copy of the list: only saves that were handed in before this removal can hold it back.
        self._pending.append(self._pool.submit(self._remove_if_saved, [*self._pending], remove))

    def check(self) -> None:
        """Raises the error of what is done, if there was one."""
        while self._pending and self._pending[0].done():
            self._pop()

    def wait(self) -> None:
        """Waits until all is done, and raises the first error."""
        while self._pending:
            self._pop()

    def close(self) -> None:
        """Waits until all is done, and raises the first error; nothing can be written any more."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _pop(self) -> None:
        try:
            # Taken out before it can raise, so that one error is raised once.
            self._pending.pop(0).result()
        except BaseException:
            # The removals behind a failed save are dropped: they would remove the last good file.
            self._pending = [each for each in self._pending if not each.cancel()]
            raise

    @staticmethod
    def _remove_if_saved(before: list[Future[None]], remove: Callable[[], None]) -> None:
        if not any(each.exception() for each in before):
            remove()
