"""Counts launches, graphs, collectives and waits of a recipe's training step in every strategy.

In the Trainer, and for one recipe's model in a loop of Fabric, too.

The step is the last of a few, when everything that trains is compiled. Graphs and single operators
are launches. The limit of a row is twice the number of graphs that run in the step, plus ten, plus
the number of its collectives. These are counts, the same on every machine and in every run.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.multiprocessing
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import Callback

from benchmarks.harness.interleaved import Effort
from benchmarks.harness.ranks import become_rank, free_ports
from benchmarks.harness.rows import Row
from lightning_gaudi.compilation.settings import VARIABLE
from lightning_gaudi.simulator import collective_stats, host_syncs, launches

RECIPES = {"BERT": "bert_pretraining", "MRPC": "mrpc", "T5": "t5_summarization"}
NUM_RANKS = 2
NUM_STEPS = 6
"""Optimizer steps; the first ones compile, and ZeRO-3 records the order of its layers."""

_MODEL_PARALLEL = "--trainer.strategy=ModelParallelStrategy"
_FSDP2 = (
    _MODEL_PARALLEL,
    "--trainer.strategy.data_parallel_size=2",
    "--trainer.strategy.tensor_parallel_size=1",
)
_TENSORS = (
    _MODEL_PARALLEL,
    "--trainer.strategy.data_parallel_size=1",
    "--trainer.strategy.tensor_parallel_size=2",
)
STRATEGIES: dict[str, tuple[str, ...]] = {
    "one card": (),
    "DDP": ("--trainer.strategy=ddp",),
    "ZeRO-1": ("--trainer.strategy=deepspeed_stage_1",),
    "ZeRO-2": ("--trainer.strategy=deepspeed_stage_2",),
    "ZeRO-3": ("--trainer.strategy=deepspeed_stage_3",),
    # FSDP joins weights to flat ones, which cannot have a weight decay each.
    "FSDP": ("--trainer.strategy=fsdp", "--model.weight_decay=0"),
    "FSDP2": _FSDP2,
    "tensor parallel": _TENSORS,
}
ONLY_T5 = ("FSDP2", "tensor parallel")
"""The strategies that a model has to support itself, as the one of this recipe does."""
WITH_VARIANTS = ("one card", "DDP", "ZeRO-3")
VARIANTS: dict[str, tuple[str, ...]] = {
    "": (),
    ", recomputed": ("--model.gradient_checkpointing=true",),
    ", two batches a step": ("--trainer.accumulate_grad_batches=2",),
}
"""The last two are for T5, in some strategies."""
IN_FABRIC = {"one card": "auto", "DDP": "ddp", "ZeRO-1": "deepspeed_stage_1", "FSDP": "fsdp"}
"""The strategies of Fabric in which a loop trains T5."""

_num_graph_runs = 0


@contextmanager
def graph_runs_counted() -> Iterator[None]:
    """Counts each call of a compiled graph."""
    name = "habana_frameworks.torch.dynamo.compile_backend.backends"
    backends: Any = importlib.import_module(name)
    original = backends.one_launch

    def counting() -> Any:
        global _num_graph_runs
        _num_graph_runs += 1
        return original()

    with patch.object(backends, "one_launch", counting):
        yield


class Counts(Callback):
    """Notes the counts at the beginning of each optimizer step."""

    def __init__(self) -> None:
        self.at_start: list[Counter[str]] = []

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        """Notes the counts, at the first batch of a step."""
        if len(self.at_start) > trainer.global_step:
            return
        self.at_start.append(_counted())

    @property
    def last(self) -> Counter[str]:
        """The counts of the last whole step."""
        return self.at_start[-1] - self.at_start[-2]


def _counted() -> Counter[str]:
    collectives = {name: each["calls"] for name, each in collective_stats().items()}
    waits = sum(host_syncs().values())
    return Counter(launches=launches(), graphs=_num_graph_runs, waits=waits, **collectives)


def _program(recipe: str, arguments: tuple[str, ...], num_devices: int, folder: str) -> Any:
    """Returns data, model and Trainer of a recipe's `simulated.yaml`, cut short."""
    torch.compiler.reset()
    module = importlib.import_module(f"recipes.{recipe}.__main__")
    return module.run(
        [
            *("--config", str(Path(module.__file__ or "").with_name("simulated.yaml"))),
            *("--trainer.logger=false", "--trainer.callbacks=null"),
            *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
            *(f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={NUM_STEPS}"),
            *("--trainer.limit_val_batches=0", "--trainer.log_every_n_steps=1000"),
            *("--model.warmup_steps=0", f"--trainer.devices={num_devices}"),
            *arguments,
        ],
        run=False,
    )


def fit(recipe: str, arguments: tuple[str, ...], num_devices: int) -> Counter[str]:
    """Runs some steps of a recipe, and returns the counts of the last one."""
    with TemporaryDirectory() as folder:
        cli = _program(recipe, arguments, num_devices, folder)
        counts = Counts()
        cli.trainer.callbacks.append(counts)
        cli.trainer.fit(cli.model, cli.datamodule)
    return counts.last


def fit_in_fabric(recipe: str, strategy: str, num_devices: int) -> Counter[str]:
    """Trains a recipe's model in a loop, clipped by the norm, and counts the last step but one."""
    with TemporaryDirectory() as folder:
        cli = _program(recipe, (), num_devices, folder)
        fabric = Fabric(accelerator="hpu", devices=num_devices, strategy=strategy)
        fabric.launch()
        cli.datamodule.setup("fit")
        optimizer = torch.optim.AdamW(cli.model.parameters(), lr=1e-4)
        model, optimizer = fabric.setup(cli.model, optimizer)
        loader = fabric.setup_dataloaders(cli.datamodule.train_dataloader())
        at_start = []
        for batch in islice(loader, NUM_STEPS):
            at_start.append(_counted())
            fabric.backward(model(batch)["loss"])
            if "deepspeed" not in strategy:  # which clips as its configuration says
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    return at_start[-1] - at_start[-2]


def cases() -> Iterator[tuple[str, str, tuple[str, ...], int]]:
    """Yields title, recipe, arguments and number of cards of each row."""
    for title, recipe in RECIPES.items():
        for name, arguments in STRATEGIES.items():
            if name in ONLY_T5 and title != "T5":
                continue
            num_devices = 1 if name == "one card" else NUM_RANKS
            for variant, more in VARIANTS.items():
                if not variant or (title == "T5" and name in WITH_VARIANTS):
                    yield f"{title}: {name}{variant}", recipe, (*arguments, *more), num_devices


def cases_in_fabric() -> Iterator[tuple[str, str, int]]:
    """Yields title, strategy and number of cards of each row of Fabric's."""
    for name, strategy in IN_FABRIC.items():
        yield f"T5 in Fabric: {name}", strategy, 1 if name == "one card" else NUM_RANKS


def run_rank(rank: int, num_ranks: int, port: int, results: Any) -> None:
    """Trains as one of the ranks in each case for that number; the first one reports."""
    os.environ.pop(VARIABLE, None)
    if num_ranks > 1:
        become_rank(rank, num_ranks)
        os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    found = {}
    with graph_runs_counted():
        for title, recipe, arguments, num_devices in cases():
            if num_devices == num_ranks:
                found[title] = fit(recipe, arguments, num_devices)
        for title, strategy, num_devices in cases_in_fabric():
            if num_devices == num_ranks:
                found[title] = fit_in_fabric(RECIPES["T5"], strategy, num_devices)
    if rank == 0:
        results.put(found)


def count(num_ranks: int) -> dict[str, Counter[str]]:
    """Returns the counts of all cases for so many cards, by title."""
    [port] = free_ports(1)
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    start: Callable[..., Any] = torch.multiprocessing.start_processes  # type: ignore[attr-defined]
    start(run_rank, (num_ranks, port, results), num_ranks, start_method="spawn")
    found: dict[str, Counter[str]] = results.get()
    return found


def measure(effort: Effort) -> list[Row]:
    """Counts in each case; an effort makes no difference to counts."""
    found = {**count(1), **count(NUM_RANKS)}
    titles = [title for title, *_ in (*cases(), *cases_in_fabric())]
    return [row(title, found[title]) for title in titles]


def row(title: str, counts: Counter[str]) -> Row:
    """Returns a case's row: its launches against twice its graphs, ten, and its collectives."""
    counts = Counter(counts)
    num_launches, num_graphs = counts.pop("launches"), counts.pop("graphs", 0)
    num_waits = counts.pop("waits", 0)
    sent = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    return Row(
        title,
        num_launches,
        "launches a step",
        limit=2 * num_graphs + 10 + counts.total(),
        detail=f"{num_graphs} graphs; {sent or 'no collectives'}; {num_waits} waits",
    )
