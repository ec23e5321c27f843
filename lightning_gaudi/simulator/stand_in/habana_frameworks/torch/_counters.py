"""Counts what the stand-in itself does; the device counts the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lightning_gaudi.simulator import observer

MAX_CAUSES = 32
"""The number of causes of recompilations that are kept."""

_MAX_KINDS = 256

Shapes = Sequence[Sequence[object]]


@dataclass
class CompiledGraphs:
    """Counts of graphs that `torch.compile(backend="hpu_backend")` handed over."""

    num_graphs: int = 0
    num_recompilations: int = 0
    """The graphs with the operators of an earlier one, on inputs of other shapes."""
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_CAUSES))
    """The latest causes of recompilations, such as "input 0: [8, 113] was [8, 128]"."""
    _shapes: dict[Hashable, Shapes] = field(default_factory=dict)

    def add(self, kind: Hashable, shapes: Shapes) -> None:
        """Counts a graph.

        Args:
            kind: What graphs that differ in sizes alone have in common.
            shapes: The shapes of the inputs; a size is a number, or a symbol if it may vary.
        """
        self.num_graphs += 1
        # Popped and put back at the end, so that the oldest kind is dropped when there are too
        # many.
        before = self._shapes.pop(kind, None)
        self._shapes[kind] = shapes
        if len(self._shapes) > _MAX_KINDS:
            del self._shapes[next(iter(self._shapes))]
        if before is None:
            observer.tell("compilation", "compiled")
        else:
            self.num_recompilations += 1
            self.causes.append(_difference(shapes, before))
            observer.tell("compilation", "recompiled", 1, self.causes[-1])

    def forget(self) -> None:
        """Forgets all graphs, because the compiler was reset: none is compiled again after that."""
        self._shapes.clear()


def _difference(now: Shapes, before: Shapes) -> str:
    changed = [
        f"input {index}: {_show(new)} was {_show(old)}"
        for index, (new, old) in enumerate(zip(now, before, strict=False))
        if list(new) != list(old)
    ]
    if len(now) != len(before):
        return "another number of inputs"
    return "; ".join(changed[:3]) or "other arguments, inputs of the same shapes"


def _show(shape: Sequence[object]) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


compiled_graphs = CompiledGraphs()
