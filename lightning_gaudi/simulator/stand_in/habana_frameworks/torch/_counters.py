"""What the stand-in itself counts; the device counts the rest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CompiledGraphs:
    """Graphs that `torch.compile(backend="hpu_backend")` handed over."""

    num_graphs: int = 0


compiled_graphs = CompiledGraphs()
