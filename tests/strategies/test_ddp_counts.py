"""What a training step on several cards does not do: wait, and send anything twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from lightning_gaudi._core import vendor
from lightning_gaudi.simulator import collective_stats
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import NUM_STEPS, Batch, Branching, Case, Gan, Regression, Tied

NUM_RANKS = 2
LOG_EVERY = 5
WARM = 8
"""Batches after which DDP has arranged its buckets and every optimizer has stepped twice."""

_HOST_WAITS = ("barrier", "all_gather_object", "broadcast_object_list", "all_reduce")


class Counting:
    """Notes at the start of each training step what was counted so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts: list[Counter[str]] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        self.counts.append(_counts())
        result = super().training_step(batch, batch_idx)  # type: ignore[misc]
        if isinstance(result, Tensor):
            self.log("loss", result)  # type: ignore[attr-defined]
            self.log("mean", result, on_step=False, on_epoch=True, sync_dist=True)  # type: ignore[attr-defined]
        return result


class Plain(Counting, Regression): ...


class CountingTied(Counting, Tied): ...


class CountingBranching(Counting, Branching): ...


class CountingGan(Counting, Gan): ...


UNUSED = {"find_unused_parameters": True}
CASES = {
    "plain": Case(Plain),
    "logged": Case(Plain, trainer={"log_every_n_steps": LOG_EVERY}),
    "clipped": Case(Plain, trainer={"gradient_clip_val": 0.1}),
    "bf16-mixed": Case(Plain, trainer={"precision": "bf16-mixed"}),
    "accumulation": Case(Plain, trainer={"accumulate_grad_batches": 4}),
    "tied": Case(CountingTied),
    "unused": Case(CountingBranching, ddp=UNUSED),
    "gan": Case(CountingGan, ddp=UNUSED),
    "static_graph": Case(Plain, ddp={"static_graph": True}),
}
Steps = dict[str, list[Counter[str]]]

_host_waits: Counter[str] = Counter()


def _counts() -> Counter[str]:
    counts = Counter(_host_waits)
    counts["graphs"] = vendor.metric("graph_compilation")["TotalNumber"]  # type: ignore[index]
    counts["host_sync"] = vendor.metric("host_sync")["TotalNumber"]  # type: ignore[index]
    for kind, stats in collective_stats().items():
        counts[kind] = stats["calls"]
        counts[f"{kind} bytes"] = stats["bytes"]
    return counts


@contextmanager
def _host_waits_counted() -> Iterator[None]:
    """Counts collectives between hosts for which the caller waits, as "host " and their name."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _HOST_WAITS:
            patch.setattr(dist, name, _counting(name, getattr(dist, name)))
        yield


def _counting(name: str, original: Any) -> Any:
    def collective(*args: Any, **kwargs: Any) -> Any:
        is_on_device = args and isinstance(args[0], Tensor) and args[0].device.type == "hpu"
        if not is_on_device and not kwargs.get("async_op", False):
            _host_waits[f"host {name}"] += 1
        return original(*args, **kwargs)

    return collective


def _fit(rank: int, folder: Path) -> Steps:
    """What was counted in each step after the first ones."""
    found = {}
    with _host_waits_counted():
        for name, case in CASES.items():
            settings: dict[str, Any] = {}
            if name == "logged":
                settings["logger"] = CSVLogger(folder)
            counts = case.fit(NUM_RANKS, **settings)[0].counts
            steps = [after - before for before, after in pairwise(counts)]
            found[name] = steps[WARM:]
            assert len(steps) == NUM_STEPS - 1
    return found


@pytest.fixture(scope="module", params=["eager", pytest.param("lazy", marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Steps]:
    folder = tmp_path_factory.mktemp("ranks")
    env = {"PT_HPU_LAZY_MODE": "1"} if request.param == "lazy" else None
    return run_trainers(_fit, folder, folder, num_ranks=NUM_RANKS, env=env)


WAITLESS = [name for name, case in CASES.items() if case.ddp != UNUSED]


@pytest.mark.parametrize("name", WAITLESS)
def test_step_waits_for_no_device_and_no_rank(ranks: list[Steps], name: str) -> None:
    for steps in ranks:
        for batch_idx, step in enumerate(steps[name], WARM):
            if name != "logged" or (batch_idx + 1) % LOG_EVERY:
                assert set(step) <= {"all_reduce", "all_reduce bytes"}, f"batch {batch_idx}"


def test_logging_a_metric_costs_one_wait_at_its_interval(ranks: list[Steps]) -> None:
    first, second = ([step.get("host_sync", 0) for step in steps["logged"]] for steps in ranks)
    # And one for the losses since the last.
    assert first == [2 * (step % LOG_EVERY == 0) for step in range(WARM + 1, NUM_STEPS)]
    assert second == first


def test_finding_unused_weights_costs_one_wait_in_each_backward(ranks: list[Steps]) -> None:
    """Not ours to mend: torch reads from the device which weights no rank has used."""
    for steps in ranks:
        assert {step.get("host_sync", 0) for step in steps["unused"]} == {1}
        assert {step.get("host_sync", 0) for step in steps["gan"]} == {2}


@pytest.mark.parametrize("name", WAITLESS)
def test_gradients_are_reduced_once(ranks: list[Steps], name: str) -> None:
    case = CASES[name]
    window = case.trainer.get("accumulate_grad_batches", 1)
    for steps in ranks:
        found = [step.get("all_reduce bytes", 0) for step in steps[name]]
        # The first of these batches is the first of a window.
        for start in range(0, len(found) - window + 1, window):
            in_window = found[start : start + window]
            assert sum(in_window) == max(in_window) == _num_gradient_bytes(case)


def test_lazy_mode_compiles_nothing_after_the_first_steps(ranks: list[Steps]) -> None:
    """In eager mode there are no graphs."""
    for steps in ranks:
        assert {name for name in CASES for step in steps[name] if step.get("graphs", 0)} == set()


def _num_gradient_bytes(case: Case) -> int:
    return sum(4 * weight.numel() for weight in case.model(*case.args).parameters())
