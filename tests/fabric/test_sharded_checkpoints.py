"""Fabric's checkpoints of models in shards: from and to any strategy, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightning_gaudi.checkpoint.torch_dcp.layout import is_sharded_folder
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_state
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import parallelize
from tests.strategies.sharded_cases import NUM_FEATURES, Block, loader, make_net

NUM_STEPS = 6
SAVED_AT = 3
Facts = dict[Any, Any]
_FSDP: dict[str, Any] = {"auto_wrap_policy": {Block}}

STRATEGIES: dict[str, Callable[[], Any]] = {
    "ddp": lambda: "ddp",
    "fsdp_full": lambda: FSDPStrategy(state_dict_type="full", **_FSDP),
    "fsdp_shards": lambda: FSDPStrategy(**_FSDP),
    "fsdp2_full": lambda: ModelParallelStrategy(
        parallelize, 2, 1, save_distributed_checkpoint=False
    ),
    "fsdp2_shards": lambda: ModelParallelStrategy(parallelize, 2, 1),
    "tensor_shards": lambda: ModelParallelStrategy(parallelize, 1, 2),
}
IN_SHARDS = ("fsdp_shards", "fsdp2_full")
PAIRS = [
    ("ddp", "fsdp_full"),
    ("ddp", "tensor_shards"),
    ("fsdp_full", "ddp"),
    ("fsdp_full", "fsdp2_full"),
    ("fsdp_shards", "fsdp2_shards"),
    ("fsdp2_full", "ddp"),
    ("fsdp2_shards", "fsdp_shards"),
    ("fsdp2_shards", "ddp"),
    ("tensor_shards", "fsdp_full"),
]


def _setup(name: str, net: nn.Module | None = None, optimizer: Any = None) -> Any:
    """Fabric, and what a user has in a checkpoint."""
    fabric = Fabric(accelerator="hpu", devices=2, strategy=STRATEGIES[name]())
    fabric.launch()
    model = fabric.setup_module(make_net() if net is None else net)
    kind = optimizer or (lambda weights: torch.optim.AdamW(weights, lr=1e-2))
    stepped = fabric.setup_optimizers(kind(model.parameters()))
    scheduler = torch.optim.lr_scheduler.StepLR(stepped, 2, gamma=0.5)
    return fabric, {"model": model, "optimizer": stepped, "scheduler": scheduler, "step": 0}


def _train(
    name: str, *, until: int = NUM_STEPS, load: Path | None = None, save: Path | None = None
) -> list[float]:
    """The losses of the steps on this rank, from the start or from a checkpoint."""
    fabric, state = _setup(name)
    scheduler = state["scheduler"]
    if load is not None:
        rest = fabric.load(load, state)
        assert rest == {"note": "of the user"}
        assert state["scheduler"] is scheduler
        assert scheduler.last_epoch == state["step"] == SAVED_AT
    is_whole = name.startswith("tensor")
    data = loader(*((0, 1) if is_whole else (fabric.global_rank, 2)), num_batches=NUM_STEPS)
    losses = []
    for features, targets in [*data][state["step"] : until]:
        features, targets = features.to("hpu"), targets.to("hpu")
        loss = (state["model"](features) - targets).pow(2).mean()
        fabric.backward(loss)
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        scheduler.step()
        state["step"] += 1
        losses.append(loss.item())
    if save is not None:
        fabric.save(save, {**state, "note": "of the user"})
    return losses


def _error(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _parts(name: str, folder: Path) -> Facts:
    """Parts of a model, a model alone, and a checkpoint before the first step."""
    fabric, state = _setup(name)
    path = folder / f"{name}_weights"
    fabric.save(path, state, filter={"model": lambda key, value: "bias" not in key})
    _, other = _setup(name)
    facts = {
        "strict": _error(lambda: fabric.load(path, other)),
        "loose": _error(lambda: fabric.load(path, other, strict=False)),
        # No step was made before: the first one must be as if nothing had been saved.
        "states": (len(state["optimizer"].state), len(other["optimizer"].state)),
    }
    raw = folder / f"{name}_model"
    fabric.save(raw, {"model": state["model"]})
    if not is_sharded_folder(raw):
        weights = torch.load(raw)["model"]
        fabric.barrier()
        if fabric.global_rank == 0:
            torch.save(weights, raw)
        fabric.barrier()
    facts["raw"] = _error(lambda: fabric.load_raw(raw, other["model"]))
    facts["raw optimizer"] = _error(lambda: fabric.load_raw(raw, other["optimizer"]))
    return facts


def _refused(name: str, folder: Path) -> Facts:
    """What a checkpoint does not fit."""
    path = folder / name
    fabric, state = _setup(name)
    _, sgd = _setup(name, optimizer=lambda weights: torch.optim.SGD(weights, momentum=0.9))
    _, groups = _setup(
        name, optimizer=lambda weights: torch.optim.AdamW([{"params": [one]} for one in weights])
    )
    wide = make_net()
    wide[-1] = nn.Linear(NUM_FEATURES, 2)
    _, wider = _setup(name, wide)
    loads: dict[str, Any] = {
        "other optimizer": sgd,
        "other groups": groups,
        "other shape": wider,
        "other names": {"net": state["model"]},
        "no optimizer": {"model": state["model"], "second": state["optimizer"]},
        "no such key": {"model": state["model"], "epoch": 1},
        "two models": {"a": state["model"], "b": wider["model"]},
        "no model": {"step": 1},
    }
    before = {name: value.clone() for name, value in _local_weights(state["model"])}
    facts: Facts = {
        case: _error(partial(fabric.load, path, target)) for case, target in loads.items()
    }
    after = dict(_local_weights(state["model"]))
    facts["touched"] = [name for name in before if not torch.equal(before[name], after[name])]
    facts["nothing"] = _error(lambda: fabric.load(folder / "none", {**state}))
    facts["options"] = _error(
        lambda: fabric.strategy.save_checkpoint(path, state, storage_options={"a": 1})
    )
    return facts


def _local_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What this rank has of each weight."""
    for name, weight in model.named_parameters():
        yield name, (weight.to_local() if isinstance(weight, DTensor) else weight).detach()


def _all(rank: int, folder: Path) -> Facts:
    facts: Facts = {name: _train(name) for name in STRATEGIES}
    for name in STRATEGIES:
        _train(name, until=SAVED_AT, save=folder / name)
        facts["resumed", name] = _train(name, load=folder / name)
    for source, target in PAIRS:
        facts[source, target] = _train(target, load=folder / source)
    for name in IN_SHARDS:
        facts["parts", name] = _parts(name, folder)
        facts["refused", name] = _refused(name, folder)
    return facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module", **SLOW)
def ranks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    return run_trainers(_all, tmp_path_factory.mktemp("ranks"), folder)


@pytest.mark.parametrize("name", STRATEGIES)
def test_resumed_losses_are_those_of_the_uninterrupted_run(ranks: list[Facts], name: str) -> None:
    for facts in ranks:
        assert facts["resumed", name] == facts[name][SAVED_AT:]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_any_strategy_goes_on_from_any_checkpoint(
    ranks: list[Facts], source: str, target: str
) -> None:
    for facts in ranks:
        assert facts[source, target] == pytest.approx(facts[target][SAVED_AT:], abs=1e-6, rel=0)


@pytest.mark.parametrize("name", ["fsdp_shards", "fsdp2_shards"])
def test_consolidated_weights_are_those_of_ddp(ranks: list[Facts], folder: Path, name: str) -> None:
    expected = torch.load(folder / "ddp", weights_only=False)["model"]
    found = load_full_state(folder / name)
    assert found.keys() == expected.keys()
    for key, weight in expected.items():
        assert torch.equal(found[key], weight), key


@pytest.mark.parametrize("name", IN_SHARDS)
def test_parts_of_a_model_are_saved_and_loaded(ranks: list[Facts], name: str) -> None:
    for facts in ranks:
        parts = facts["parts", name]
        assert "It lacks 0.down.bias, 0.norm.bias, 0.up.bias" in parts["strict"]
        assert parts["loose"] == parts["raw"] == "none"
        assert "loaded together with its model" in parts["raw optimizer"]


@pytest.mark.parametrize("name", IN_SHARDS)
def test_optimizer_saved_before_its_first_step_has_made_none(ranks: list[Facts], name: str) -> None:
    for facts in ranks:
        assert facts["parts", name]["states"] == (0, 0)


@pytest.mark.parametrize("name", IN_SHARDS)
def test_nothing_is_loaded_of_what_does_not_fit(ranks: list[Facts], name: str) -> None:
    for facts in ranks:
        assert facts["refused", name]["touched"] == []


@pytest.mark.parametrize("name", IN_SHARDS)
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("other optimizer", "keeps exp_avg, exp_avg_sq, step of"),
        ("other groups", "groups of"),
        ("other shape", "model.3.weight has the shape (1, 16) in the checkpoint and (2, 16) in"),
        ("other names", "The checkpoint has no model 'net'"),
        ("no optimizer", "The checkpoint has no state of 'second'"),
        ("no such key", "KeyError"),
        ("two models", "found 'a', 'b' in"),
        ("no model", "found none in ['step']"),
        ("nothing", "FileNotFoundError: There is no checkpoint at"),
        ("options", "TypeError: Checkpoints of models in shards have no use for storage_options="),
    ],
)
def test_what_does_not_fit_is_named(
    ranks: list[Facts], name: str, case: str, expected: str
) -> None:
    for facts in ranks:
        assert expected in facts["refused", name][case]
