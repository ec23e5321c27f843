"""Captures what runs within a `with` block."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from .._lifecycle import synchronize
from ..streams import Stream, stream
from .graph import HPUGraph, require_lazy


class graph:  # noqa: N801 (the vendor's name)
    """Captures what runs within a `with` block.

    Args:
        hpu_graph: The graph that gets the capture.
        stream: The stream to capture; by default one that all captures share.
        dry_run: See `HPUGraph.capture_begin`.

    Raises:
        RuntimeError: The process is in eager mode.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self, hpu_graph: HPUGraph, stream: Stream | None = None, dry_run: bool = False
    ) -> None:
        require_lazy("hpu.graph")
        if stream is None:
            stream = type(self).default_capture_stream or Stream()
            type(self).default_capture_stream = stream
        self.capture_stream = stream
        self.hpu_graph = hpu_graph
        self.dry_run = dry_run
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        self._stack.enter_context(stream(self.capture_stream))
        self.capture_stream.is_capture = True
        self.hpu_graph.capture_begin(self.dry_run)

    def __exit__(self, exc_type: type | None, *exc_info: object) -> None:
        with self._stack:
            self.capture_stream.is_capture = False
            if exc_type is None:
                self.hpu_graph.capture_end()
            else:
                self.hpu_graph.reset()


@contextlib.contextmanager
def capturing(captured: HPUGraph, on: Stream, dry_run: bool) -> Iterator[None]:
    """Captures a block, without waiting for the device first; a failing block leaves no graph."""
    with stream(on):
        captured.capture_begin(dry_run)
        try:
            yield
            captured.capture_end()
        except BaseException:
            captured.reset()
            raise
