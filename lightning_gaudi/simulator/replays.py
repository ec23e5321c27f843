"""Tell one follower of the HPU graphs that are captured and replayed.

A replay calls no operator on a dry card: who counts operators has to know what a graph is made of.
"""

from __future__ import annotations

from typing import Protocol


class Follower(Protocol):
    """Is told in the thread of the capture or replay, before it goes on."""

    def note_capture(self) -> None:
        """Operators are captured from here on."""

    def note_captured(self, graph: object, is_run: bool) -> None:
        """Notes that the capture has ended.

        Args:
            graph: What `note_replay` is given, too.
            is_run: Whether the capture has run its operators as well.
        """

    def note_replay(self, graph: object) -> None:
        """Notes that a graph runs again."""


follower: Follower | None = None
"""Of this process."""


def follow(by: Follower | None) -> None:
    """Tells an object of what follows from now on; None tells nobody."""
    global follower
    follower = by
