"""What the user sets of DDP arrives, however it is passed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_gaudi import HPUDDPStrategy
from lightning_gaudi.distributed import ddp
from lightning_gaudi.simulator import collective_stats
from tests.helpers.ranks import call_forked
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import SPAWNING, fork_what_is_spawned, run_trainers
from tests.strategies.ddp_cases import Branching, Case, Regression, loader

NUM_RANKS = 2
MIB = 1024**2
Facts = dict[str, Any]


class Noting(DDPStrategy):
    """A user's strategy: with an argument and a method of its own."""

    def __init__(self, note: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.note = note

    def setup(self, trainer: pl.Trainer) -> None:
        super().setup(trainer)
        self.note += " and set up"


class Looking(Regression):
    """Notes how it is wrapped, in memory that `ddp_spawn` gives back: its weights' dict."""

    def on_train_start(self) -> None:
        strategy = self.trainer.strategy
        assert isinstance(strategy, HPUDDPStrategy)
        wrapped = strategy.model
        assert isinstance(wrapped, DistributedDataParallel)
        self.facts = {
            "bucket_cap_mb": wrapped.bucket_bytes_cap / MIB,
            "gradient_as_bucket_view": wrapped.gradient_as_bucket_view,
            "find_unused_parameters": wrapped.find_unused_parameters,
            "static_graph": wrapped.static_graph,
            "broadcast_buffers": wrapped.broadcast_buffers,
            "backend": dist.get_backend(),
            "note": getattr(strategy, "note", None),
            "timeout": strategy._timeout,
        }


class LookingBranching(Looking, Branching):
    """Trains only if unused weights are looked for."""


SET = {
    "bucket_cap_mb": 3,
    "gradient_as_bucket_view": False,
    "static_graph": True,
    "broadcast_buffers": True,
}


def _fit(rank: int) -> dict[str, Facts]:
    strategies: dict[str, tuple[type[Looking], Any]] = {
        "auto": (Looking, "auto"),
        "ddp": (Looking, "ddp"),
        "hpu_parallel": (Looking, "hpu_parallel"),
        "unused": (LookingBranching, "ddp_find_unused_parameters_true"),
        "instance": (Looking, DDPStrategy(timeout=timedelta(seconds=77), **SET)),
        "ours": (Looking, HPUDDPStrategy(process_group_backend="hccl", **SET)),
        "subclass": (Looking, Noting("made", **SET)),
    }
    found = {}
    for name, (model, strategy) in strategies.items():
        fitted, trainer = Case(model).fit(NUM_RANKS, strategy=strategy)
        assert isinstance(strategy, str) or trainer.strategy is strategy
        found[name] = fitted.facts
    caps = {"vendor's": {}, "torch's": {"bucket_cap_mb": None}, "user's": {"bucket_cap_mb": 1}}
    found["messages"] = {whose: _num_messages(settings) for whose, settings in caps.items()}
    return found


def _num_messages(settings: dict[str, Any]) -> int:
    """In how many all-reduces 4 MiB of gradients travel, once DDP has arranged its buckets."""
    layers = [nn.Linear(512, 512, bias=False) for _ in range(4)]
    wrapped = ddp.wrap(nn.Sequential(*layers).to("hpu"), settings)
    calls = []
    for _ in range(3):
        wrapped(torch.ones(1, 512, device="hpu")).sum().backward()
        calls.append(collective_stats()["all_reduce"]["calls"])
    return calls[-1] - calls[-2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Facts]]:
    return run_trainers(_fit, tmp_path_factory.mktemp("ranks"), num_ranks=NUM_RANKS)


@pytest.mark.parametrize("name", ["auto", "ddp", "hpu_parallel"])
def test_settings_are_the_vendors_where_the_user_has_none(
    ranks: list[dict[str, Facts]], name: str
) -> None:
    for facts in ranks:
        found = dict(facts[name])
        del found["timeout"]
        assert found == {
            "bucket_cap_mb": 230,
            "gradient_as_bucket_view": True,
            "find_unused_parameters": False,
            "static_graph": False,
            "broadcast_buffers": False,
            "backend": "hccl",
            "note": None,
        }


def test_first_bucket_is_as_large_as_the_others(ranks: list[dict[str, Facts]]) -> None:
    """torch's own is of 1 MiB, for users who let torch choose."""
    expected = {"vendor's": 1, "torch's": 2, "user's": 4}
    assert [facts["messages"] for facts in ranks] == [expected] * NUM_RANKS


@pytest.mark.parametrize("name", ["instance", "ours", "subclass"])
def test_settings_of_the_user_are_kept(ranks: list[dict[str, Facts]], name: str) -> None:
    for facts in ranks:
        assert SET.items() <= facts[name].items()
        assert facts[name]["backend"] == "hccl"


def test_a_names_settings_and_a_timeout_are_kept(ranks: list[dict[str, Facts]]) -> None:
    for facts in ranks:
        assert facts["unused"]["find_unused_parameters"] is True
        assert facts["instance"]["timeout"] == timedelta(seconds=77)


def test_a_users_subclass_goes_on_as_itself(ranks: list[dict[str, Facts]]) -> None:
    assert [facts["subclass"]["note"] for facts in ranks] == ["made and set up"] * NUM_RANKS


class _WritingDown(Looking):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_train_start(self) -> None:
        super().on_train_start()
        torch.save(self.facts, self.folder / f"rank{self.global_rank}.pt")

    def train_dataloader(self) -> Any:
        return loader(self.global_rank, NUM_RANKS)


@SPAWNING
def test_a_users_subclass_survives_ddp_spawn(tmp_path: Path, is_forked: bool) -> None:
    """Spawned ones get it by pickle, and the weights come back as those of rank 0."""
    call_forked(_spawn, tmp_path, is_forked, timeout=240)


def test_ddp_spawn_is_refused_in_a_process_that_holds_a_card() -> None:
    torch.ones(1, device="hpu")
    trainer = pl.Trainer(accelerator="hpu", devices=2, strategy="ddp_spawn", **QUIET)
    with pytest.raises(MisconfigurationException, match="each of 2 cards, but this one has used"):
        trainer.fit(Looking())


def _spawn(folder: Path, is_forked: bool) -> None:
    if is_forked:
        fork_what_is_spawned()
    torch.manual_seed(7)
    model, strategy = _WritingDown(folder), Noting("made", start_method="spawn", **SET)
    trainer = pl.Trainer(
        accelerator="hpu", devices=NUM_RANKS, strategy=strategy, max_epochs=1, **QUIET
    )
    trainer.fit(model)
    for rank in range(NUM_RANKS):
        facts = torch.load(folder / f"rank{rank}.pt", weights_only=False)
        assert facts["note"] == "made and set up"
        assert SET.items() <= facts.items()
    expected = Case().fit(1, accelerator="cpu")[0]
    for weight, found in zip(expected.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, weight, rtol=0, atol=1e-6)
