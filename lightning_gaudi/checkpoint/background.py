"""One thread that writes checkpoints while training goes on, and then removes those before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Does one thing after the other in a thread, and keeps the first error for who asks.

    Python ends only when all of it is done.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: list[Future[None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether all is done, well or not."""
        return all(each.done() for each in self._pending)

    def save(self, write: Callable[[], None]) -> None:
        """Writes something after what is on its way; `wait` raises the errors of that.

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
            self._pending.pop(0).result()
        except BaseException:
            # What was to be removed after it stays.
            self._pending = [each for each in self._pending if not each.cancel()]
            raise

    @staticmethod
    def _remove_if_saved(before: list[Future[None]], remove: Callable[[], None]) -> None:
        if not any(each.exception() for each in before):
            remove()
