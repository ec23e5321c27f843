"""Models in shards go on from any checkpoint, whoever saved it, as if nothing had interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from lightning_gaudi.checkpoint.torch_dcp.layout import is_sharded_folder
from lightning_gaudi.checkpoint.torch_dcp.load import (
    load_full_checkpoint,
    load_full_state,
)
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import global_losses, loader
from tests.strategies.sharded_checkpoint_cases import (
    NUM_BATCHES,
    STRATEGIES,
    Resumable,
    evaluate,
    fit,
)

pytestmark = pytest.mark.slow

FLAT = ("fsdp_flat_full", "fsdp_flat_shards")
SOURCES = (
    "ddp",
    "fsdp_full",
    "fsdp_shards",
    "fsdp2_full",
    "fsdp2_shards",
    "tensor_full",
    "tensor_shards",
)
TARGETS = {
    2: ("ddp", "fsdp_full", "fsdp2_shards", "tensor_full"),
    4: ("ddp", "fsdp_hybrid_shards", "fsdp2_full", "mesh_shards"),
    1: ("ddp", "fsdp_shards", "fsdp2_full"),
}
"""Strategies that load what two cards have saved, by number of cards."""

RESUMED = tuple(
    name for name in STRATEGIES if name != "ddp" and not name.startswith(("mesh", "fsdp_hybrid"))
)
"""Strategies that go on from their own checkpoints."""
FLAT_PAIRS = ((FLAT[0], "ddp"), (FLAT[1], "ddp"), ("ddp", FLAT[0]))
"""Who has saved, and who loads that: from and to one flat parameter for each layer."""

Facts = dict[Any, Any]


def _save(rank: int, folder: Path) -> Facts:
    """Two epochs in one go, and the first one saved; then all that loads it on two cards."""
    facts: Facts = {"ddp": fit("ddp", 2, 2)[0]}
    for name in SOURCES:
        _, trainer = fit(name, 2, 1)
        trainer.save_checkpoint(folder / name)
    for name in RESUMED:
        settings: Any = {"dropout": 0.3, "is_grouped": name not in FLAT}
        _, trainer = fit(name, 2, 1, **settings)
        trainer.save_checkpoint(folder / "dropout")  # in the place of the former one
        resumed = fit(name, 2, 2, folder / "dropout", **settings)[0]
        facts["resumed", name] = fit(name, 2, 2, **settings)[0][NUM_BATCHES:], resumed
    return facts | _flat(folder) | _load(rank, folder, 2)


def _flat(folder: Path) -> Facts:
    """With the optimizer in one group."""
    facts: Facts = {"flat": fit("ddp", 2, 2, is_grouped=False)[0][NUM_BATCHES:]}
    for source, target in FLAT_PAIRS:
        _, trainer = fit(source, 2, 1, is_grouped=False)
        trainer.save_checkpoint(folder / "flat")
        facts["flat", source] = fit(target, 2, 2, folder / "flat", is_grouped=False)[0]
    return facts


def _load(rank: int, folder: Path, num_ranks: int) -> Facts:
    facts: Facts = {}
    for source, target in product(SOURCES, TARGETS[num_ranks]):
        facts[source, target] = fit(target, num_ranks, 2, folder / source)[0]
    for target in TARGETS[num_ranks]:
        facts["test", target] = evaluate(target, num_ranks, folder / "fsdp_shards")
    return facts


@dataclass(frozen=True)
class Run:
    """What came of it."""

    folder: Path
    """Of the checkpoints."""
    found: dict[int, list[Facts]]
    """What each rank found, by the number of ranks; two have saved the checkpoints."""

    @property
    def expected(self) -> Tensor:
        """The losses of the second epoch."""
        return global_losses([facts["ddp"] for facts in self.found[2]])[NUM_BATCHES:]


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, results = tmp_path_factory.mktemp("saved"), tmp_path_factory.mktemp("found")
    found = {2: run_trainers(_save, results, folder, num_ranks=2, timeout=300)}
    for num in (4, 1):
        found[num] = run_trainers(_load, results, folder, num, num_ranks=num)
    return Run(folder, found)


def test_resumed_losses_are_those_of_the_uninterrupted_run(run: Run) -> None:
    """To the bit, with the dropout that each rank would have drawn."""
    for name in RESUMED:
        for facts in run.found[2]:
            uninterrupted, resumed = facts["resumed", name]
            assert resumed == uninterrupted, name
            assert len(resumed) == NUM_BATCHES


@pytest.mark.parametrize("num_ranks", TARGETS)
def test_any_strategy_goes_on_from_any_checkpoint(run: Run, num_ranks: int) -> None:
    """Off by no more than the strategies are among themselves."""
    for pair in product(SOURCES, TARGETS[num_ranks]):
        found = global_losses([facts[pair] for facts in run.found[num_ranks]])
        torch.testing.assert_close(found, run.expected, rtol=0, atol=1e-6, msg=str(pair))


def test_flat_parameters_keep_their_optimizer_states_apart(run: Run) -> None:
    for source, target in FLAT_PAIRS:
        for facts in run.found[2]:
            expected = pytest.approx(facts["flat"], abs=1e-6, rel=0)
            assert facts["flat", source] == expected, f"from {source} to {target}"


@pytest.mark.parametrize("num_ranks", TARGETS)
def test_shards_are_tested_as_they_are(run: Run, num_ranks: int) -> None:
    model = Resumable()
    model.load_state_dict(load_full_state(run.folder / "fsdp_shards"))
    with torch.no_grad():
        parts = [model.net(batch[0]) - batch[1] for batch in loader(0, 1, NUM_BATCHES)]
    expected = torch.cat(parts).pow(2).mean().item()
    for target in TARGETS[num_ranks]:
        losses = [facts["test", target] for facts in run.found[num_ranks]]
        assert sum(losses) / num_ranks == pytest.approx(expected, abs=1e-6), target


@pytest.mark.parametrize("name", ["fsdp_shards", "fsdp2_shards"])
def test_consolidated_weights_are_those_of_ddp(run: Run, name: str) -> None:
    assert is_sharded_folder(run.folder / name)
    expected = torch.load(run.folder / "ddp", weights_only=False)["state_dict"]
    found = load_full_state(run.folder / name)
    assert found.keys() == expected.keys()
    for key, weight in expected.items():
        assert torch.equal(found[key], weight), key


@pytest.mark.parametrize("name", SOURCES)
def test_cpu_goes_on_from_any_checkpoint(run: Run, tmp_path: Path, name: str) -> None:
    """From a folder once it is a file."""
    path = run.folder / name
    if is_sharded_folder(path):
        torch.save(load_full_checkpoint(path), tmp_path / "whole.ckpt")
        path = tmp_path / "whole.ckpt"
    model = Resumable()
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, **QUIET)
    trainer.fit(model, loader(0, 1, NUM_BATCHES), ckpt_path=path)
    found = torch.stack(model.losses).double()
    torch.testing.assert_close(found, run.expected, rtol=0, atol=1e-6)


def test_file_of_shards_is_that_of_ddp(run: Run) -> None:
    """The optimizer's numbers, groups and settings too."""
    expected = torch.load(run.folder / "ddp", weights_only=False)
    for name in ("fsdp_full", "fsdp2_full"):
        found = torch.load(run.folder / name, weights_only=False)
        assert found.keys() == expected.keys()
        (mine,), (other,) = found["optimizer_states"], expected["optimizer_states"]
        assert mine["param_groups"] == other["param_groups"]
        torch.testing.assert_close(mine["state"], other["state"], rtol=0, atol=1e-7)
