"""Which benchmarks there are, what each needs, and what they are about."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1]

GROUPS = {
    "simulator": "The simulated card against the CPU",
    "trainer": "The plugin against a bare loop, Lightning on the CPU and Hugging Face's Trainer",
    "data": "Packing and buckets",
    "distributed": "DDP and shards",
    "checkpoints": "Checkpoints",
    "generation": "Texts and pictures",
    "growth": "How cost grows with ranks, rows and layers",
    "import": "Import",
}
"""By name, the titles of what is shown together, in the order of the results."""

EAGER, LAZY = "eager", "lazy"


@dataclass(frozen=True)
class Benchmark:
    """A module here, whose `measure` takes an `Effort` and returns rows."""

    name: str
    """Of the module."""
    group: str
    num_cards: int = 1
    """Of the simulated server; 0: no simulator."""
    modes: tuple[str, ...] = (EAGER,)

    @property
    def about(self) -> str:
        """The first line of the module's docstring; importing it would take its libraries."""
        text = ast.get_docstring(ast.parse((FOLDER / f"{self.name}.py").read_text())) or ""
        return text.splitlines()[0]


_ALL = (
    Benchmark("simulator_vs_cpu", "simulator"),
    Benchmark("trainer_overhead", "trainer"),
    Benchmark("callbacks_cost", "trainer", modes=(EAGER, LAZY)),
    Benchmark("graph_counts", "trainer", modes=(LAZY,)),
    Benchmark("launches", "trainer"),
    Benchmark("strategy_launches", "distributed", num_cards=2),
    Benchmark("fine_tuning", "trainer"),
    Benchmark("recipe_throughput", "data", num_cards=0),
    Benchmark("token_efficiency", "data", num_cards=0),
    Benchmark("ddp_step", "distributed", num_cards=2),
    Benchmark("reliability_cost", "distributed", num_cards=2),
    Benchmark("sharded_memory", "distributed", num_cards=4),
    Benchmark("async_checkpoint", "checkpoints"),
    Benchmark("checkpoint_loading", "checkpoints"),
    Benchmark("generation", "generation", modes=(EAGER, LAZY)),
    Benchmark("pictures", "generation"),
    Benchmark("growth_ranks", "growth", num_cards=0),
    Benchmark("growth_rows", "growth", num_cards=0),
    Benchmark("growth_layers", "growth"),
    Benchmark("import_cost", "import", num_cards=0),
)
BENCHMARKS = {each.name: each for each in _ALL}
"""By name."""
