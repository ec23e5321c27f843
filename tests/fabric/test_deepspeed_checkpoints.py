"""Fabric's checkpoints in shards, and those of other strategies loaded into shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DeepSpeedStrategy
from torch import nn

from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate, consolidated
from tests.fabric.deepspeed_loop import adamw, cards
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import loader, make_net

STAGES = (0, 2, 3)
NUM_BATCHES = 6
Losses = list[float]


def _zero(stage: int) -> Fabric:
    return cards(strategy=DeepSpeedStrategy(stage=stage))


def _set_up(fabric: Fabric) -> dict[str, Any]:
    """What a loop saves; a fresh one, whose weights no checkpoint has."""
    net = make_net()
    with torch.no_grad():
        for each in net.parameters():
            each.add_(0.1)
    net, optimizer = fabric.setup(net, adamw(net))
    return {"net": net, "optimizer": optimizer, "step": 0, "average": torch.zeros(2)}


def _train(fabric: Fabric, state: dict[str, Any], until: int) -> Losses:
    """The losses of the steps that are left."""
    losses = []
    batches = loader(fabric.global_rank, fabric.world_size, NUM_BATCHES)
    for step, batch in enumerate(batches):
        if state["step"] <= step < until:
            features, targets = fabric.to_device(batch)
            loss = (state["net"](features) - targets).pow(2).mean()
            fabric.backward(loss)
            state["optimizer"].step()
            state["optimizer"].zero_grad()
            losses.append(loss.item())
            state["average"] = state["average"] + loss.item()
            state["step"] += 1
    return losses


def _loss(fabric: Fabric, net: nn.Module) -> float:
    (batch,) = loader(fabric.global_rank, fabric.world_size, 1)
    features, targets = fabric.to_device(batch)
    with torch.no_grad():
        return (net(features) - targets).pow(2).mean().item()


def _save_and_load(rank: int, folder: Path) -> dict[Any, Any]:
    fabric = cards(strategy="ddp")
    state = _set_up(fabric)
    _train(fabric, state, 3)
    fabric.save(folder / "ddp.ckpt", state)
    weights = {name: each.cpu() for name, each in state["net"].module.state_dict().items()}
    found: dict[Any, Any] = {"ddp": (_loss(fabric, state["net"]), weights)}
    for stage in STAGES:
        found[stage] = _of_stage(rank, folder, stage)
    return found


def _of_stage(rank: int, folder: Path, stage: int) -> dict[str, Any]:
    fabric, home = _zero(stage), folder / f"{stage}.ckpt"
    state = _set_up(fabric)
    _train(fabric, state, 3)
    fabric.save(home, state)
    found: dict[str, Any] = {"losses": _train(fabric, state, NUM_BATCHES)}
    fabric.save(home, {"net": state["net"], "optimizer": state["optimizer"], "step": 6})
    found["versions"] = sorted(each.name for each in home.iterdir() if each.is_dir())
    # The first three steps once more, since the checkpoint has been saved anew.
    fabric = _zero(stage)
    state = _set_up(fabric)
    _train(fabric, state, 3)
    fabric.save(home, state)
    fabric = _zero(stage)
    state = _set_up(fabric)
    found["rest"] = fabric.load(home, state)
    found["average"] = state["average"]
    found["resumed"] = _train(fabric, state, NUM_BATCHES)
    _load_whole(rank, folder, found, stage)
    return found


def _load_whole(rank: int, folder: Path, found: dict[str, Any], stage: int) -> None:
    """Weights alone, of shards and of files."""
    home = folder / f"{stage}.ckpt"
    fabric = _zero(stage)
    net = fabric.setup_module(make_net())
    fabric.load(home, {"net": net})
    found["evaluated"] = _loss(fabric, net)
    if rank == 0:
        consolidate(home, folder / f"{stage}-whole.ckpt")
    fabric.barrier()
    found["whole"] = torch.load(folder / f"{stage}-whole.ckpt", weights_only=False)
    state = _set_up(fabric)
    found["left"] = sorted(fabric.load(folder / "ddp.ckpt", {"net": state["net"]}))
    found["from_ddp"] = _loss(fabric, state["net"])
    fabric.load_raw(home, state["net"])
    found["raw"] = _loss(fabric, state["net"])
    found["masters"] = _masters(folder, stage)
    found["errors"] = [
        _message(fabric.load, folder / "ddp.ckpt", state),
        _message(fabric.load, home, {"step": 0}),
        _message(fabric.load, home, {"net": state["net"], "other": 0}),
        _message(fabric.save, folder / "x", {"step": 0}),
        _message(fabric.save, folder / "x", {"net": state["net"], "module": 1}),
        _message(fabric.save, folder / "x", {"net": state["net"]}, filter={"net": len}),
    ]


def _masters(folder: Path, stage: int) -> dict[str, torch.Tensor]:
    """What an optimizer in bf16 steps, after weights in fp32 were loaded."""
    fabric = cards(strategy=DeepSpeedStrategy(stage=stage), precision="bf16-true")
    state = _set_up(fabric)
    fabric.load(folder / "ddp.ckpt", {"net": state["net"]})
    if stage > 0:
        fabric.save(folder / f"{stage}-bf16.ckpt", {"net": state["net"]})
        return consolidated(folder / f"{stage}-bf16.ckpt")[0]["net"]
    optimizer = state["optimizer"].optimizer
    names = {each: name for name, each in state["net"].module.named_parameters()}
    groups = zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
    pairs = [pair for group in groups for pair in zip(*group, strict=True)]
    return {names[weight]: master.detach().cpu() for weight, master in pairs}


def _message(function: Any, *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except (ValueError, TypeError, KeyError) as error:
        return str(error)
    return "nothing"


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: Any) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return run_trainers(_save_and_load, folder, folder)


@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_with_the_same_bits(ranks: Any, stage: int) -> None:
    for rank in ranks:
        assert len(rank[stage]["resumed"]) == NUM_BATCHES - 3
        assert rank[stage]["resumed"] == rank[stage]["losses"]
        assert rank[stage]["average"].min() > 0
        assert rank[stage]["rest"] == {}


@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_saved_again_has_one_version(ranks: Any, stage: int) -> None:
    assert ranks[0][stage]["versions"] == ["checkpoint-2"]


@pytest.mark.parametrize("stage", STAGES)
def test_consolidated_weights_are_those_of_ddp_under_the_model_s_name(
    ranks: Any, stage: int
) -> None:
    _, expected = ranks[0]["ddp"]
    whole = ranks[0][stage]["whole"]
    assert set(whole) == {"net", "step", "average"}
    for name, each in expected.items():
        assert torch.equal(whole["net"][name], each), name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("source", ["evaluated", "from_ddp", "raw"])
def test_weights_alone_can_be_loaded_from_shards_and_from_ddp(
    ranks: Any, stage: int, source: str
) -> None:
    for rank in ranks:
        assert rank[stage][source] == rank["ddp"][0]
        assert rank[stage]["left"] == ["average", "optimizer", "step"]


@pytest.mark.parametrize("stage", STAGES)
def test_masters_in_bf16_are_the_weights_in_fp32(ranks: Any, stage: int) -> None:
    _, expected = ranks[0]["ddp"]
    found = ranks[0][stage]["masters"]
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.equal(found[name], each), name


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (1, "needs one model of DeepSpeed's among the objects, and there is none"),
        (2, "'other'"),
        (3, "needs one model of DeepSpeed's"),
        (4, "something of its own under the name 'module'"),
        (5, "no use for filter="),
    ],
)
def test_what_cannot_be_done_is_refused_on_all_ranks(ranks: Any, position: int, text: str) -> None:
    for rank in ranks:
        for stage in STAGES:
            assert text in rank[stage]["errors"][position]


def test_the_optimizer_of_another_strategy_is_refused(ranks: Any) -> None:
    for rank in ranks:
        for stage in (2, 3):
            assert "optimizer 'optimizer' is in shards" in rank[stage]["errors"][0]
