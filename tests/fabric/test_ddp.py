"""Fabric on two cards, held to one process on the CPU with the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi.fabric import HPUDDPStrategy
from lightning_gaudi.simulator import collective_stats, reset_statistics
from tests.fabric.loop import NUM_STEPS, make_model, train
from tests.helpers.ranks import call_forked
from tests.helpers.trainers import SPAWNING, fork_what_is_spawned, run_trainers

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 5},
    "clip": {"max_norm": 0.5},
}
GRADIENT_BYTES = 4 * sum(parameter.numel() for parameter in make_model().parameters())


def two_cards(**settings: Any) -> Fabric:
    fabric = Fabric(**{"accelerator": "hpu", "devices": 2, **settings})
    fabric.launch()
    return fabric


def _rank(rank: int, folder: Path) -> dict[str, Any]:
    """All that is looked at, on one of two ranks."""
    fabric = two_cards()
    fabric.launch()  # again: nothing
    assert fabric.global_rank == rank
    return {
        "rank": rank,
        "weights": {name: _weights(fabric, **case) for name, case in CASES.items()},
        "bf16": _weights(two_cards(precision="bf16-mixed")),
        "card": (str(fabric.device), os.environ["HLS_MODULE_ID"]),
        "counts": {name: _counts(fabric, **case) for name, case in CASES.items()},
        "collectives": _collectives(fabric),
        "evaluations": _evaluations(),
        "saved": _save(fabric, folder / "state.ckpt"),
        "sampled": _sampled(fabric),
    }


def _weights(fabric: Fabric, **case: Any) -> dict[str, Tensor]:
    # Only rank 0 starts as the CPU does: DistributedDataParallel gives its weights to the others.
    model = make_model() if fabric.is_global_zero else make_model(seed=9)
    train(fabric, model, **case)
    return {name: weight.cpu() for name, weight in model.state_dict().items()}


def _counts(fabric: Fabric, **case: Any) -> dict[str, Any]:
    """What is communicated and waited for in the second half of a training.

    In the first one DistributedDataParallel arranges its buckets, once.
    """
    syncs: list[Any] = []
    setup = fabric.setup_dataloaders

    def setup_and_count(data: Any) -> Any:
        for step, batch in enumerate(setup(data)):
            if step == NUM_STEPS:
                reset_statistics()
                syncs.append(vendor.metric("host_sync"))
            yield batch

    fabric.setup_dataloaders = setup_and_count  # type: ignore[method-assign]
    train(fabric, num_steps=2 * NUM_STEPS, **case)
    fabric.setup_dataloaders = setup  # type: ignore[method-assign]
    syncs.append(vendor.metric("host_sync"))
    return {
        "found": {kind: dict(each) for kind, each in collective_stats().items()},
        "syncs": syncs,
    }


def _collectives(fabric: Fabric) -> dict[str, Any]:
    rank, device = fabric.global_rank, fabric.device
    weight = torch.full((2,), 1.0 + rank, device=device, requires_grad=True)
    gathered = fabric.all_gather(weight, sync_grads=True)
    (gathered * torch.tensor([[1.0], [10.0]], device=device)).sum().backward()
    reset_statistics()
    found = {
        "mean": fabric.all_reduce(torch.tensor([rank, 1.0], device=device)),
        "sum": fabric.all_reduce({"a": rank + 1, "b": [2.0]}, reduce_op="sum"),
        "max": fabric.all_reduce(torch.tensor(rank, device=device), reduce_op="max"),
        "gather": fabric.all_gather({"rank": rank, "row": torch.tensor([rank, 7])}),
        "gathered": gathered.detach(),
        "grad": weight.grad,
        "broadcast": fabric.broadcast({"tensor": weight.detach(), "text": f"from {rank}"}, src=1),
        "all": fabric.strategy.reduce_boolean_decision(rank == 0),
        "any": fabric.strategy.reduce_boolean_decision(rank == 0, all=False),
    }
    fabric.barrier()
    with fabric.rank_zero_first():
        pass
    found["device"] = str(found["broadcast"]["tensor"].device)
    assert "barrier" not in collective_stats()
    return found


def _evaluations() -> dict[str, Any]:
    """The running mean of a batch norm, which each rank has its own of while it trains."""
    found = {}
    for name, settings in {"default": {}, "users": {"broadcast_buffers": False}}.items():
        fabric = two_cards(strategy=DDPStrategy(**settings))
        norm = nn.BatchNorm1d(1)
        model = fabric.setup(norm)
        means = []
        for value in (1.0, 2.0):
            model.train()
            features = torch.full((2, 1), value * (fabric.global_rank + 1), device=fabric.device)
            fabric.backward(model(features).sum())
            means.append(norm.running_mean.item())
            model.eval()
            with torch.no_grad():
                model(features)
            means.append(norm.running_mean.item())
        found[name] = means
    return found


def _save(fabric: Fabric, path: Path) -> dict[str, Any]:
    model = make_model()
    wrapped = fabric.setup(model)
    fabric.save(path, {"model": wrapped, "rank": fabric.global_rank})
    other = make_model(seed=8)
    rest = {"model": fabric.setup(other), "rank": None}
    fabric.load(path, rest)
    same = [torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)]
    return {"rank": rest["rank"], "same": all(same), "keys": list(torch.load(path))}


def _sampled(fabric: Fabric) -> list[int]:
    data = torch.utils.data.DataLoader(torch.arange(6), batch_size=1)
    return [int(batch) for batch in fabric.setup_dataloaders(data)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_trainers(_rank, folder, folder)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_cpu_on_the_whole_batch(ranks: list[Any], name: str) -> None:
    model = make_model()
    train(Fabric(accelerator="cpu", devices=1), model, **CASES[name])
    for key, expected in model.state_dict().items():
        found = ranks[0]["weights"][name][key]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, msg=key)
        assert torch.equal(found, ranks[1]["weights"][name][key]), key


def test_weights_in_bf16_are_the_same_bits_on_all_ranks(ranks: list[Any]) -> None:
    for key, found in ranks[0]["bf16"].items():
        assert torch.equal(found, ranks[1]["bf16"][key]), key
        assert not torch.equal(found, ranks[0]["weights"]["plain"][key]), key


def test_each_rank_drives_its_card_as_hpu_0(ranks: list[Any]) -> None:
    assert [found["card"] for found in ranks] == [("hpu:0", "0"), ("hpu:0", "1")]


@pytest.mark.parametrize("name", CASES)
def test_a_step_reduces_its_gradients_once_and_waits_for_nothing(
    ranks: list[Any], name: str
) -> None:
    steps = NUM_STEPS // CASES[name].get("accumulate", 1)
    for found in ranks:
        counts = found["counts"][name]
        num_bytes = steps * GRADIENT_BYTES
        once = {"calls": steps, "bytes": num_bytes, "sent": num_bytes}  # of two ranks
        assert counts["found"] == {"all_reduce": once}
        assert counts["syncs"][0] == counts["syncs"][1]


def test_collectives_have_the_values_of_all_ranks(ranks: list[Any]) -> None:
    for rank, found in enumerate(found["collectives"] for found in ranks):
        assert found["mean"].tolist() == [0.5, 1.0]
        assert (found["sum"]["a"].item(), found["sum"]["b"][0].item()) == (3, 4.0)
        assert found["max"].item() == 1
        assert found["gather"]["rank"].tolist() == [0, 1]
        assert found["gather"]["row"].tolist() == [[0, 7], [1, 7]]
        assert found["gathered"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
        # Both ranks' losses take this rank's row with its factor.
        assert found["grad"].tolist() == [2 * (1.0, 10.0)[rank]] * 2
        assert found["broadcast"]["tensor"].tolist() == [2.0, 2.0]
        assert found["broadcast"]["text"] == "from 1"
        assert found["device"] == "hpu:0"
        assert (found["all"], found["any"]) == (False, True)


def test_evaluations_have_the_buffers_of_rank_0_unless_the_user_has_a_setting(
    ranks: list[Any],
) -> None:
    first, second = (found["evaluations"] for found in ranks)
    mean = [0.1, 0.1, 0.1 * 0.9 + 0.2, 0.1 * 0.9 + 0.2]
    assert first["default"] == first["users"] == pytest.approx(mean)
    assert second["default"] == pytest.approx([0.2, 0.1, 0.1 * 0.9 + 0.4, mean[3]])
    assert second["users"] == pytest.approx([0.2, 0.2, 0.2 * 0.9 + 0.4, 0.2 * 0.9 + 0.4])


def test_rank_0_saves_and_all_load(ranks: list[Any]) -> None:
    expected = {"rank": 0, "same": True, "keys": ["model", "rank"]}
    assert [found["saved"] for found in ranks] == [expected, expected]


def test_each_rank_has_its_part_of_the_data(ranks: list[Any]) -> None:
    assert [found["sampled"] for found in ranks] == [[0, 2, 4], [1, 3, 5]]


class Counting(DDPStrategy):
    """A strategy that a user wrote."""

    num_setups = 0

    def setup_module(self, module: nn.Module) -> Any:
        self.num_setups += 1
        return super().setup_module(module)


def _spawned(fabric: Fabric, value: int) -> dict[str, Any]:
    model = make_model()
    train(fabric, model)
    return {
        "is_ours": isinstance(fabric.strategy, HPUDDPStrategy),
        "setups": fabric.strategy.num_setups,
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "sum": fabric.all_reduce(torch.tensor(float(value)), reduce_op="sum").item(),
        "backend": dist.get_backend_config(),
    }


@SPAWNING
def test_launch_spawns_ranks_and_returns_what_rank_0_found(tmp_path: Path, is_forked: bool) -> None:
    call_forked(_spawn, tmp_path, is_forked, timeout=240)


def _spawn(folder: Path, is_forked: bool) -> None:
    if is_forked:
        fork_what_is_spawned()
    strategy = Counting(start_method="spawn")
    found = Fabric(accelerator="hpu", devices=2, strategy=strategy).launch(_spawned, 3)
    assert (found["is_ours"], found["setups"], found["sum"]) == (True, 1, 6.0)
    assert "hpu:hccl" in found["backend"]
    expected = make_model()
    train(Fabric(accelerator="cpu", devices=1), expected)
    for weight, parameter in zip(found["weights"], expected.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(weight), parameter.data, rtol=0, atol=1e-6)


def test_using_it_before_launch_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"you must call `\.launch\(\)`"):
        Fabric(accelerator="hpu", devices=2).setup(make_model())
