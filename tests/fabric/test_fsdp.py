"""Fabric with FSDP on two cards, held to DDP and to one process with the whole batch."""

from __future__ import annotations

from typing import Any

import lightning_fabric
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import wrap

from lightning_gaudi.fabric import HPUFSDPStrategy
from tests.fabric.loop import NUM_FEATURES, NUM_STEPS, make_model, train
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers

NUM_RANKS = 2
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 5},
    "clip": {"max_norm": 0.5},
}
LAYERS = {nn.Linear}
STRATEGIES = {
    "fsdp": {},
    "layers": {"auto_wrap_policy": LAYERS},
    "grad_op": {"auto_wrap_policy": LAYERS, "sharding_strategy": "SHARD_GRAD_OP"},
    "hybrid": {"auto_wrap_policy": LAYERS, "sharding_strategy": "HYBRID_SHARD"},
    "mesh": {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (1, 2)},
    "checkpointed": {"auto_wrap_policy": LAYERS, "activation_checkpointing_policy": LAYERS},
    "offload": {"cpu_offload": True},
}
Found = dict[str, Any]


def two_cards(strategy: Any, **settings: Any) -> Fabric:
    fabric = Fabric(accelerator="hpu", devices=NUM_RANKS, strategy=strategy, **settings)
    fabric.launch()
    return fabric


def _losses(fabric: Any, **case: Any) -> list[float]:
    return [loss.item() for loss in train(fabric, **case)]


def _rank(rank: int) -> Found:
    """All that is looked at, on one of two ranks."""
    ddp = two_cards("ddp")
    return {
        "ddp": {case: _losses(ddp, **settings) for case, settings in CASES.items()},
        "fsdp": {
            (name, case): _losses(two_cards(FSDPStrategy(**arguments)), **settings)
            for name, arguments in STRATEGIES.items()
            for case, settings in CASES.items()
        },
        "bf16": {
            strategy: _losses(two_cards(strategy, precision="bf16-mixed"))
            for strategy in ("ddp", "fsdp")
        },
        "other family": _losses(_other_family()),
        "flat": _flat(two_cards(FSDPStrategy(use_orig_params=False))),
        "initialized": _initialized(two_cards(FSDPStrategy(auto_wrap_policy=LAYERS))),
        "norms": {name: _norms(two_cards(name)) for name in ("ddp", "fsdp")},
        "not finite": _not_finite(two_cards("fsdp")),
        "left out": _left_out(two_cards("fsdp")),
    }


def _other_family() -> Any:
    strategy = lightning_fabric.strategies.FSDPStrategy(auto_wrap_policy=LAYERS)
    fabric = lightning_fabric.Fabric(accelerator="hpu", devices=NUM_RANKS, strategy=strategy)
    fabric.launch()
    return fabric


def _flat(fabric: Fabric) -> Found:
    """With one parameter for all of a layer's; the optimizer must come after the model."""
    model = make_model()
    with pytest.raises(ValueError, match=r"use_orig_params=False") as error:
        fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    before = [weight.detach().clone() for weight in wrapped.parameters()]
    fabric.backward(wrapped(torch.ones(2, NUM_FEATURES, device=fabric.device)).sum())
    optimizer.step()
    moved = any(not torch.equal(a, b) for a, b in zip(before, wrapped.parameters(), strict=True))
    return {"error": str(error.value), "parameters": len(before), "moved": moved}


def _initialized(fabric: Fabric) -> list[float]:
    """Layers that have no memory before they are in shards; the optimizer comes after that."""
    with fabric.init_module(empty_init=True):
        model = nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.GELU(), nn.Linear(16, 1))
    assert all(weight.is_meta for weight in model.parameters())
    wrapped = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = wrapped(torch.ones(2, NUM_FEATURES, device=fabric.device)).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _norms(fabric: Fabric) -> list[Tensor]:
    """The norms of one gradient, each of which is clipped to the next one's order."""
    model = make_model()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    features = torch.ones(2, NUM_FEATURES, device=fabric.device) * (1 + fabric.global_rank)
    fabric.backward(wrapped(features).sum())
    norms = [
        fabric.clip_gradients(wrapped, optimizer, max_norm=limit, norm_type=order)
        for order, limit in ((2.0, 1.0), ("inf", 0.1), (1.0, 1e3), (2.0, 1.0))
    ]
    fabric.clip_gradients(wrapped, optimizer, clip_val=0.01)
    norms.append(fabric.clip_gradients(wrapped, optimizer, max_norm=1e3))
    return [norm.cpu() for norm in norms if norm is not None]


def _not_finite(fabric: Fabric) -> str:
    model = make_model()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(wrapped(torch.full((2, NUM_FEATURES), torch.nan, device=fabric.device)).sum())
    norm = fabric.clip_gradients(wrapped, optimizer, max_norm=1.0, error_if_nonfinite=False)
    assert norm is not None
    assert norm.isnan()
    with pytest.raises(RuntimeError) as error:
        fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
    return str(error.value)


def _left_out(fabric: Fabric) -> str:
    with fabric.init_module():
        model = make_model()
        model[0] = wrap(model[0])
    assert isinstance(model[0], FullyShardedDataParallel)
    with pytest.raises(MisconfigurationException) as error:
        fabric.setup_module(model)
    return str(error.value)


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return run_trainers(_rank, tmp_path_factory.mktemp("ranks"), num_ranks=NUM_RANKS)


def _mean(ranks: list[list[float]]) -> Tensor:
    return torch.tensor(ranks, dtype=torch.float64).mean(0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_losses_are_those_of_ddp(ranks: list[Found], name: str, case: str) -> None:
    found = _mean([rank["fsdp"][name, case] for rank in ranks])
    expected = _mean([rank["ddp"][case] for rank in ranks])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_one_process(ranks: list[Found], case: str) -> None:
    expected = _losses(Fabric(accelerator="cpu", devices=1), **CASES[case])
    found = _mean([rank["fsdp"]["fsdp", case] for rank in ranks])
    torch.testing.assert_close(found, _mean([expected]), rtol=0, atol=2e-6)


def test_bf16_mixed_is_that_of_ddp(ranks: list[Found]) -> None:
    found, expected = (_mean([rank["bf16"][name] for rank in ranks]) for name in ("fsdp", "ddp"))
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-3)
    assert not torch.equal(found, _mean([rank["ddp"]["plain"] for rank in ranks]))


def test_other_family_trains_alike(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["other family"] == pytest.approx(found["ddp"]["plain"], abs=1e-6)


def test_one_parameter_for_all_takes_the_optimizer_later(ranks: list[Found]) -> None:
    for found in ranks:
        assert "use_orig_params=False" in found["flat"]["error"]
        assert found["flat"]["parameters"] == 1
        assert found["flat"]["moved"]


def test_layers_without_memory_get_it_in_shards(ranks: list[Found]) -> None:
    losses = _mean([rank["initialized"] for rank in ranks])
    assert len(losses) == NUM_STEPS
    assert losses.isfinite().all()
    assert losses[-1] < losses[0]


def test_norms_are_those_of_all_gradients(ranks: list[Found]) -> None:
    for found in ranks:
        fsdp, ddp = found["norms"]["fsdp"], found["norms"]["ddp"]
        torch.testing.assert_close(torch.stack(fsdp), torch.stack(ddp), rtol=1e-5, atol=0)
        assert ddp[0] > 1.0 > 0.1 > ddp[-1], "clipped by norm, then by value"


def test_norm_that_is_not_finite_is_an_error(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["not finite"].startswith("The gradients' norm of order 2.0 is nan")


def test_layer_left_out_is_named(ranks: list[Found]) -> None:
    for found in ranks:
        assert "but not 2.weight, 2.bias. Wrap what holds these too" in found["left out"]


def test_cards_get_lightnings_defaults() -> None:
    strategy = Fabric(accelerator="hpu", devices=2, strategy="hpu_fsdp").strategy
    assert type(strategy) is HPUFSDPStrategy
    assert strategy._state_dict_type == "sharded"
