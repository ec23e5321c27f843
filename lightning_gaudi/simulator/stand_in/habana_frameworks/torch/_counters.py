"""What the stand-in itself counts; the device counts the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lightning_gaudi.simulator import observer

MAX_CAUSES = 32
"""How many causes of recompilations are kept."""

_MAX_KINDS = 256

Shapes = Sequence[Sequence[object]]


@dataclass
class CompiledGraphs:
    """Graphs that `torch.compile(backend="hpu_backend")` handed over."""

    num_graphs: int = 0
    num_recompilations: int = 0
    """Of graphs, those with the operators of an earlier one on inputs of other shapes."""
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_CAUSES))
    """The latest recompilations': "input 0: [8, 113] was [8, 128]"."""
    _shapes: dict[Hashable, Shapes] = field(default_factory=dict)

    def add(self, kind: Hashable, shapes: Shapes) -> None:
        """Counts a graph.

        Args:
            kind: What graphs have in common that differ in sizes alone.
            shapes: Of the inputs; a size is a number, or a symbol if it may vary.
        """
        self.num_graphs += 1
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
        """What is compiled from now on is not compiled again: the compiler was reset."""
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
