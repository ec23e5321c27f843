"""In which order a card gets launches and collectives: what can overlap with backward does."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import pytest
from torch import Tensor

from lightning_gaudi.simulator import observer
from tests.compilation.test_ranks import Model, _strategy
from tests.helpers.tiny import QUIET, batches
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.slow

NUM_EPOCHS, NUM_BATCHES = 2, 8
SENDS = {"all_reduce", "reduce_scatter", "reduce"}


class Order(Model):
    """Two blocks and a head, and the events of the last step, from its forward on."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.compile_regions = []  # one graph would end before anything is sent
        self.events: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.events.clear()
        return super().training_step(batch, batch_idx)

    def on_before_backward(self, loss: Tensor) -> None:
        self.events.append("backward begins")

    def on_after_backward(self) -> None:
        self.events.append("backward ends")


def _events_of(rank: int, kind: str, compile: str) -> list[str]:
    name = "habana_frameworks.torch.dynamo.compile_backend.backends"
    backends: Any = importlib.import_module(name)
    model = Order(kind)
    one_launch = backends.one_launch

    def graph() -> Any:
        model.events.append("graph")
        return one_launch()

    def note(event: str, what: str, amount: int, detail: str) -> None:
        if event == "collective":
            model.events.append(what)
        elif event == "launch":
            model.events.append("launch")

    observer.observe(note)
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=_small_buckets(kind, compile),
        max_epochs=NUM_EPOCHS,
        **QUIET,
    )
    with patch.object(backends, "one_launch", graph):
        trainer.fit(model, batches(NUM_BATCHES))
    return model.events


def _small_buckets(kind: str, compile: str) -> Any:
    """Strategies whose buckets hold one block: the model has to be larger than one."""
    from lightning_gaudi import strategies

    if kind == "ddp":
        return strategies.HPUDDPStrategy(bucket_cap_mb=0.001, compile=compile)
    if kind.startswith("zero"):
        zero = {"stage": int(kind[5]), "reduce_bucket_size": 300, "overlap_comm": True}
        if kind == "zero_3":
            zero |= {
                "stage3_param_persistence_threshold": 0,
                "stage3_prefetch_bucket_size": 300,
                "stage3_max_reuse_distance": 0,
            }
        config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
        return strategies.HPUDeepSpeedStrategy(config=config, compile=compile)
    return _strategy(kind, compile)


@pytest.mark.parametrize("compile", ["none", "regions"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "zero_1", "zero_2", "zero_3"])
def test_reductions_begin_before_backward_ends(kind: str, compile: str, tmp_path: Path) -> None:
    for events in run_trainers(_events_of, tmp_path, kind, compile):
        backward = events[events.index("backward begins") : events.index("backward ends")]
        runs = [index for index, event in enumerate(backward) if event in ("graph", "launch")]
        sends = [index for index, event in enumerate(backward) if event in SENDS]
        assert len(sends) > 1
        # Another block's backward comes behind the first reduction.
        after = [backward[index] for index in runs if index > sends[0]]
        assert len(after) > 1
        if compile == "regions":
            assert "graph" in after


@pytest.mark.parametrize("kind", ["fsdp2", "zero_3"])
def test_weights_are_gathered_ahead(kind: str, tmp_path: Path) -> None:
    """The next block's are on their way before the one before it has run backward."""
    for events in run_trainers(_events_of, tmp_path, kind, "regions"):
        begins = events.index("backward begins")
        backward = [index for index, event in enumerate(events) if event == "graph"]
        _, second, last = (index for index in backward if index > begins)
        ends = events.index("backward ends")  # behind which ZeRO's ranks send each other norms
        gathers = [index for index, event in enumerate(events[:ends]) if event == "all_gather"]
        # None as late as when they are needed.
        assert gathers[-1] < second < last
        if kind == "fsdp2":  # ZeRO-3 keeps what it has gathered for a model as small as this
            assert gathers[-1] > backward[0]


def test_models_of_one_bucket_send_once(tmp_path: Path) -> None:
    for events in run_trainers(_with_default_buckets, tmp_path):
        backward = events[events.index("backward begins") : events.index("backward ends")]
        assert backward.count("all_reduce") == 1
        # Behind the last graph, itself a launch: the bucket is filled by one, and divided.
        last = len(backward) - backward[::-1].index("graph")
        assert backward[last:] == ["launch", "launch", "launch", "all_reduce"]


def _with_default_buckets(rank: int) -> list[str]:
    with patch(f"{__name__}._small_buckets", _strategy):
        return _events_of(rank, "ddp", "regions")
