"""Tells one object, the follower, of the HPU graphs that are captured and replayed.

A replay calls no operator on a dry card, so whatever counts operators has to remember those of the
capture.
"""

from __future__ import annotations

from typing import Protocol


class Follower(Protocol):
    """What is told of captures and replays, in their thread and before they go on."""

    def note_capture(self) -> None:
        """Notes that operators are captured from here on."""

    def note_captured(self, graph: object, is_run: bool) -> None:
        """Notes that the capture has ended.

        Args:
            graph: The graph, which `note_replay` is given, too.
            is_run: Whether the capture has run its operators as well.
        """

    def note_replay(self, graph: object) -> None:
        """Notes that a graph runs again."""


follower: Follower | None = None
"""The follower of this process, if there is one."""


def follow(by: Follower | None) -> None:
    """Makes an object the follower from now on; None ends that."""
    global follower
    follower = by
