"""The parts that are measured; each runs in processes of its own, and reports row after row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_gaudi.tools.verify.parts import collectives, kernels, launches, memory, rules, steps
from lightning_gaudi.tools.verify.parts.context import Context, Tell, presence

__all__ = ["PARTS", "Context", "Tell"]

PARTS: dict[str, Callable[[Context, Tell], Any]] = {
    "presence": presence,
    "rules": rules.measure,
    "memory": memory.measure,
    "launches": launches.measure,
    "compile": launches.measure_compilation,
    "matmuls": kernels.measure_matmuls,
    "operators": kernels.measure_operators,
    "copies": kernels.measure_copies,
    "collectives": collectives.measure,
    "steps": steps.measure,
}
"""The functions that measure the parts, by name."""
