"""Implements HPUGraph: a capture is begun, ended and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lightning_gaudi.simulator import replays

from ..._binding import C
from .. import random
from ..streams import current_stream
from . import checks
from .program import Program
from .record import Recorder, key_of

_capturing: list[HPUGraph] = []
"""The graph that is being captured, at most one."""


def require_lazy(what: str) -> None:
    """Checks that this process is in lazy mode.

    Raises:
        RuntimeError: It is not.
    """
    if not C.is_lazy():
        raise RuntimeError(
            f"{what} is available in lazy mode only, and this process is in eager mode. Set "
            "PT_HPU_LAZY_MODE=1 before it starts, or use torch.compile(backend='hpu_backend')."
        )


def is_current_stream_capturing() -> bool:
    """Returns whether `hpu.graph` captures on the object that is the current stream.

    False while `wrap_in_hpu_graph`, `make_graphed_callables` or `HPUGraph.capture_begin` capture:
    none of them marks the object of the current stream.

    Source: `is_current_stream_capturing` in `hpu/graphs.py` of the vendor's bridge, 1.24.0.
    """
    return bool(getattr(current_stream(), "is_capture", False))


class HPUGraph:
    """A capture of the device's work, which is replayed without its Python.

    Source: `hpu/graphs.py` and `HPUGraph.cpp` of the vendor's bridge, 1.19 and 1.24.0.

    Raises:
        RuntimeError: The process is in eager mode.
    """

    def __init__(self) -> None:
        require_lazy("HPUGraph")
        self._program: Program | None = None
        self._recorder: Recorder | None = None
        self._registers: dict[Any, int] = {}
        self._stream_id = 0
        self._num_graphs_before = 0
        self._generator: torch.Tensor | None = None
        self._shapes: list[torch.Size] = []
        self._held_inputs: list[torch.Tensor] = []
        self._keeps_inputs = False

    def capture_begin(self, dry_run: bool = False) -> None:
        """Begins to capture what runs on the current stream.

        Args:
            dry_run: Whether to only find out what runs: results are garbage until the first replay,
                and tensors that the capture writes in place stay as before.

        Raises:
            RuntimeError: Another capture is in progress.
        """
        if _capturing:
            raise RuntimeError(
                "An HPU graph capture is in progress already. End it with capture_end() before "
                "another begins: graphs do not nest."
            )
        C.end_graph_at_capture()
        self._num_graphs_before = _num_graphs()
        self._stream_id = current_stream().stream_id
        # A dry run must leave no trace: the numbers that it draws are drawn again by the first
        # replay.
        self._generator = random.get_rng_state() if dry_run else None
        self._recorder = Recorder(dry_run, checks.report_host_values)
        _capturing.append(self)
        if replays.follower is not None:
            replays.follower.note_capture()
        self._recorder.__enter__()

    def capture_end(self) -> None:
        """Ends the capture; from now on the graph can be replayed.

        Raises:
            RuntimeError: The current stream is not the one that the capture began on.
        """
        recorder = self._recorder
        if recorder is None:
            return
        if not self.is_on_current_stream():
            raise RuntimeError(
                f"The HPU graph capture began on stream {self._stream_id}, and the current one is "
                f"{current_stream().stream_id}. End it on the stream that it began on."
            )
        self._leave()
        C.end_graph_at_capture()
        self._program = recorder.finish(_num_graphs() - self._num_graphs_before)
        if replays.follower is not None:
            replays.follower.note_captured(self._program, not recorder.is_dry)
        constants = self._program.constants
        self._registers = {k: i for k, i in recorder.registers.items() if constants[i] is not None}
        if self._generator is not None:
            random.set_rng_state(self._generator)

    def is_on_current_stream(self) -> bool:
        """Returns whether the current stream is the one that the capture began on."""
        return current_stream().stream_id == self._stream_id

    def replay(self, asynchronous: bool = False) -> None:
        """Runs the graph again, on the memory of its capture.

        Args:
            asynchronous: Whether to return at once; the simulated HPU always ends before.

        Raises:
            RuntimeError: A capture is in progress, or the graph has marked inputs.
        """
        program = self._ready()
        if program is not None and program.inputs:
            raise RuntimeError(
                f"The HPU graph takes {len(program.inputs)} marked inputs with each replay. Give "
                "them: replay_with_inputs(tensors) or replayV3(tensors)."
            )
        if program is not None:
            program.run()

    def replay_with_inputs(
        self,
        tlistI: list[torch.Tensor] | None = None,  # noqa: N803
        asynchronous: bool = False,
    ) -> None:
        """Runs the graph again, on other tensors in place of its marked inputs.

        Args:
            tlistI: What `mark_user_inputs` got in the capture, in the same order and shapes.
            asynchronous: See `replay`.

        Raises:
            RuntimeError: A capture is in progress, or number or shapes differ.
        """
        self.replayV3(tlistI or [], asynchronous)

    def replayV2(  # noqa: N802
        self,
        static_tlist: list[torch.Tensor],
        tlist: list[torch.Tensor],
        asynchronous: bool = False,
    ) -> None:
        """Runs the graph again, on other tensors in place of some of the capture's.

        Args:
            static_tlist: Tensors that the capture read.
            tlist: What to read instead, one for each.
            asynchronous: See `replay`.

        Raises:
            RuntimeError: A capture is in progress.
            ValueError: The lists differ in length.
        """
        pairs = zip(static_tlist, tlist, strict=True)
        found = [(self._registers.get(key_of(static)), new) for static, new in pairs]
        if (program := self._ready()) is not None:
            program.run(instead={index: new for index, new in found if index is not None})

    def replayV3(  # noqa: N802
        self,
        tlistI: Sequence[torch.Tensor],  # noqa: N803
        asynchronous: bool = False,
    ) -> None:
        """Runs the graph again, on other tensors in place of its marked inputs.

        Args:
            tlistI: What `mark_user_inputs` got in the capture, in the same order and shapes.
            asynchronous: See `replay`.

        Raises:
            RuntimeError: A capture is in progress, or number or shapes differ.
        """
        program = self._ready()
        shapes = [tensor.shape for tensor in tlistI]
        if shapes[: len(self._shapes)] != self._shapes:
            raise RuntimeError(
                f"The HPU graph was captured with marked inputs of shapes "
                f"{[tuple(shape) for shape in self._shapes]}, and is replayed with "
                f"{[tuple(shape) for shape in shapes]}. Capture another graph for other shapes."
            )
        if program is not None:
            program.run(tlistI)
            if self._keeps_inputs:
                self._held_inputs = list(tlistI)

    def clear_inputs(self) -> None:
        """Drops the inputs that the graph updates in place and still holds."""
        self._held_inputs = []

    def mark_user_inputs(self, static_tlist: Sequence[torch.Tensor]) -> None:
        """Has the caller give these tensors at each replay, so that the graph does not keep them.

        Args:
            static_tlist: Inputs of what is being captured.

        Raises:
            RuntimeError: No capture is in progress.
        """
        if self._recorder is None:
            raise RuntimeError(
                "mark_user_inputs belongs between capture_begin() and capture_end(), and this HPU "
                "graph is not being captured."
            )
        self._shapes = [tensor.shape for tensor in static_tlist]
        self._recorder.mark_inputs(static_tlist)

    def mark_user_outputs(
        self, static_tlist: Sequence[torch.Tensor], free_inplace: bool = True
    ) -> None:
        """Keeps only the memory of these results.

        Args:
            static_tlist: What the caller reads after a replay.
            free_inplace: Whether inputs that are updated in place are let go of after a replay, and
                not at `clear_inputs`.

        Raises:
            RuntimeError: The capture has not ended.
        """
        self._keeps_inputs = not free_inplace
        if (program := self._ready()) is None:
            return
        wanted = {tensor.untyped_storage()._cdata for tensor in static_tlist}
        program.kept = [kept for kept in program.kept if kept.storage._cdata in wanted]

    def get_user_input_match_indices(self) -> set[int]:
        """Returns which of the marked inputs the graph reads."""
        return set(self._program.inputs) if self._program is not None else set()

    def reset(self) -> None:
        """Drops the graph and its memory; a capture in progress ends without a graph."""
        if self._recorder is not None:
            self._leave()
        self._program = None
        self._registers = {}
        self._held_inputs = []

    def reads(self) -> set[int]:
        """Returns the addresses of storages from before the capture that it read."""
        constants = self._program.constants if self._program is not None else []
        return {t.untyped_storage()._cdata for t in constants if t is not None}

    def writes(self) -> frozenset[int]:
        """Returns the addresses of storages from before the capture that it writes."""
        return self._program.written if self._program is not None else frozenset()

    def __del__(self) -> None:
        if getattr(self, "_recorder", None) is not None:
            self.reset()

    def _leave(self) -> None:
        assert self._recorder is not None
        self._recorder.__exit__(None, None, None)
        self._recorder = None
        _capturing.remove(self)

    def _ready(self) -> Program | None:
        if _capturing:
            raise RuntimeError(
                "An HPU graph capture is in progress, so no graph can be replayed. End it with "
                "capture_end()."
            )
        return self._program


def _num_graphs() -> int:
    stats = C.graph_stats()
    return int(stats["num_compilations"] + stats["num_cache_hits"])
