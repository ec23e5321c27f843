"""Optimizer and weights on the CPU change nothing but where they are, in the Trainer and Fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DeepSpeedStrategy as FabricStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DeepSpeedStrategy

from lightning_gaudi.deepspeed import library
from lightning_gaudi.deepspeed.config import offload
from lightning_gaudi.deepspeed.ops.build import OpBuildError
from tests.fabric.deepspeed_loop import adamw, cards, cpu_adamw, train, train_masters
from tests.helpers.slow import SLOW
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import CASES, LateStack, Stack, global_losses

OFFLOAD = {"device": "cpu", "pin_memory": True}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 1e-2}}
SGD = "sgd_accumulated_clipped_scheduled"


def _config(stage: int, *offloaded: str, **settings: Any) -> dict[str, Any]:
    zero = {"stage": stage, **dict.fromkeys(offloaded, OFFLOAD)}
    return {"zero_optimization": zero, "zero_allow_untested_optimizer": True, **settings}


BOTH = ("offload_optimizer", "offload_param")
UNFORCED = {"zero_force_ds_cpu_optimizer": False}


class CpuAdamStack(Stack):
    def configure_optimizers(self) -> Any:
        return cpu_adamw(self)


class LateCpuAdamStack(LateStack):
    def configure_optimizers(self) -> Any:
        return cpu_adamw(self)


class Unoptimized(Stack):
    """What is trained by the optimizer that DeepSpeed's settings name."""

    def configure_optimizers(self) -> None:
        return None


class Look(pl.Callback):
    """Notes where things are, as long as they are there: at the end all goes to the CPU."""

    devices: dict[str, set[str]]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.devices = _devices(trainer.strategy.model)


@dataclass(frozen=True)
class Trained:
    """A training: its losses, what they must be those of, and where its states were."""

    losses: list[float]
    reference: str
    states: set[str] = field(default_factory=set)
    """Devices of the optimizer's states."""
    weights: set[str] = field(default_factory=set)
    """Devices of this rank's weights, in shards or whole."""


def _devices(engine: Any) -> dict[str, set[str]]:
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    states = {
        value.device.type
        for state in inner.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.numel() > 1
    }
    weights = [getattr(each, "ds_tensor", each) for each in engine.module.parameters()]
    return {"states": states, "weights": {each.device.type for each in weights}}


def _with_fabric(strategy: Any, reference: str, make: Any = cpu_adamw, **settings: Any) -> Trained:
    fabric = cards(strategy=strategy, **settings)
    losses = train(fabric, make_optimizer=make)
    return Trained(losses, reference, **_devices(fabric.strategy.model))  # type: ignore[attr-defined]


def _with_trainer(strategy: Any, reference: str, model: Stack, **settings: Any) -> Trained:
    case = CASES[SGD if model.optimizer == "sgd" else "adamw"]
    look = Look()
    losses, _ = case.fit(2, model=model, strategy=strategy, callbacks=[look], **settings)
    return Trained(losses, reference, **look.devices)


def _fabric_trainings() -> Iterator[tuple[str, Callable[[], Trained]]]:
    for stage in (1, 2, 3):
        name = f"deepspeed_stage_{stage}_offload"
        yield f"fabric {name}", lambda name=name: _with_fabric(name, "cpu_adam")
    for stage, offloaded in ((2, BOTH[:1]), (3, BOTH)):
        config = _config(stage, *offloaded)
        key = f"fabric stage {stage} of {offloaded}"
        yield key, lambda c=config: _with_fabric(FabricStrategy(config=c), "cpu_adam")
        yield (
            f"{key}, torch's AdamW",
            lambda c=config: _with_fabric(FabricStrategy(config=c | UNFORCED), "adamw", adamw),
        )
        yield (
            f"{key}, bf16",
            lambda c=config: _with_fabric(
                FabricStrategy(config=c), "cpu_adam in bf16", precision="bf16-mixed"
            ),
        )
    config = _config(3, "offload_param")
    yield "fabric parameters", lambda: _with_fabric(FabricStrategy(config=config), "adamw", adamw)


def _trainer_trainings() -> Iterator[tuple[str, Callable[[], Trained]]]:
    for stage in (2, 3):
        name = f"deepspeed_stage_{stage}_offload"
        yield name, lambda name=name: _with_trainer(name, "cpu_adam", CpuAdamStack())
        config = _config(stage, *BOTH[: stage - 1])
        yield (
            f"stage {stage}, configured AdamW",
            lambda c=config: _with_trainer(
                DeepSpeedStrategy(config=c | {"optimizer": ADAMW}), "cpu_adam", Unoptimized()
            ),
        )
        yield (
            f"stage {stage}, torch's SGD",
            lambda c=config: _with_trainer(
                DeepSpeedStrategy(config=c | UNFORCED), SGD, Stack("sgd")
            ),
        )
    yield (
        "made in shards",
        lambda: _with_trainer("deepspeed_stage_3_offload", "cpu_adam", LateCpuAdamStack()),
    )
    strategy = DeepSpeedStrategy(config=_config(3, "offload_param"))
    yield "parameters", lambda: _with_trainer(strategy, "adamw", Stack())


def _train(rank: int) -> dict[str, Trained]:
    library.load()
    ddp, bf16 = cards(strategy="ddp"), cards(strategy="ddp", precision="bf16-true")
    on_cpu: Any = {"make_optimizer": cpu_adamw, "device": "cpu"}
    offload.prepare(_config(2, *BOTH))
    trained = {
        "adamw": Trained(train(ddp), "adamw"),
        "cpu_adam": Trained(train_masters(ddp, **on_cpu), "adamw"),
        "cpu_adam in bf16": Trained(train_masters(bf16, **on_cpu), "adamw"),
        SGD: Trained(CASES[SGD].fit(2, strategy="ddp")[0], SGD),
    }
    for trainings in (_fabric_trainings(), _trainer_trainings()):
        trained |= {name: make() for name, make in trainings}
    return trained


NAMES = [name for each in (_fabric_trainings, _trainer_trainings) for name, _ in each()]
Ranks = list[dict[str, Trained]]


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: Any) -> Ranks:
    """What each rank has trained."""
    offload.prepare(_config(2, *BOTH))  # takes half a minute on a machine where it never ran
    return run_trainers(_train, tmp_path_factory.mktemp("ranks"), timeout=480)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_ddp_with_the_same_optimizer(ranks: Ranks, name: str) -> None:
    reference = ranks[0][name].reference
    expected = global_losses([rank[reference].losses for rank in ranks])
    found = global_losses([rank[name].losses for rank in ranks])
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-3 if "bf16" in name else 1e-6)


@pytest.mark.timeout(1200)
def test_deepspeeds_adam_for_the_cpu_is_torchs_but_for_its_rounding(ranks: Ranks) -> None:
    """It computes 1 - beta in fp32, which for 0.999 is off by 5e-5 of itself."""
    torchs, deepspeeds = (
        global_losses([rank[name].losses for rank in ranks]) for name in ("adamw", "cpu_adam")
    )
    torch.testing.assert_close(deepspeeds, torchs, rtol=0, atol=5e-6)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_offloaded_is_on_the_cpu_and_the_rest_is_not(ranks: Ranks, name: str) -> None:
    is_optimizer = "parameters" not in name
    is_parameters = "stage_3" in name or "stage 3" in name or not is_optimizer or "shards" in name
    for rank in ranks:
        if rank[name].reference != SGD:  # which has no states
            assert rank[name].states == {"cpu" if is_optimizer else "hpu"}
        assert rank[name].weights == {"cpu" if is_parameters else "hpu"}


def _with_optimizer(kind: str, stage: int = 2, **params: Any) -> dict[str, Any]:
    return _config(stage, "offload_optimizer", optimizer={"type": kind, "params": params})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (_config(2, *BOTH), r"offload_param=\{'device': 'cpu'\} with ZeRO stage 2.* stage=3"),
        (_config(0, BOTH[0]), r"offload_optimizer=.* stage 0: .* the optimizer from stage 1 on"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            r"offload_param=\{'device': 'nvme'\}.* async_io.* 'deepspeed_stage_3_offload'",
        ),
        (_with_optimizer("Lamb"), "optimizer.type='Lamb' .* cannot step on the CPU"),
        (_with_optimizer("Adagrad"), "optimizer.type='Adagrad' .* Set it to 'Adam' or 'AdamW'"),
        (_with_optimizer("FusedAdamW"), "optimizer.type='FusedAdamW' .* cannot step"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises((MisconfigurationException, ValueError), match=said):
        offload.check_offload(config)


@pytest.mark.parametrize(
    "config",
    [
        _config(1, BOTH[0]),
        _config(3, *BOTH),
        _with_optimizer("AdamW"),
        _with_optimizer("SGD"),
        _config(3),
        {"zero_optimization": {"stage": 0, "offload_param": {"device": "none"}}},
        {},
    ],
)
def test_what_can_be_offloaded_is_not_refused(config: dict[str, Any]) -> None:
    offload.check_offload(config)


@pytest.mark.parametrize("room", [pl.Trainer, Fabric])
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("deepspeed_stage_3_offload_nvme", "needs DeepSpeed's async_io"),
        ("parameters in stage 2", "DeepSpeed offloads parameters from stage 3 on"),
    ],
)
def test_a_strategy_is_refused_before_anything_runs(room: Any, strategy: str, said: str) -> None:
    quiet = QUIET if room is pl.Trainer else {}
    kind = DeepSpeedStrategy if room is pl.Trainer else FabricStrategy
    passed: Any = strategy
    if strategy == "parameters in stage 2":
        passed = kind(stage=2, offload_parameters=True)
    with pytest.raises(MisconfigurationException, match=said):
        room(accelerator="hpu", devices=2, strategy=passed, **quiet)


def _on_card(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from deepspeed.ops.adam import FusedAdam

    optimizer: torch.optim.Optimizer = FusedAdam(parameters)
    return optimizer


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (torch.optim.AdamW, {}, r"torch\.optim\.adamw\.AdamW is .*DeepSpeedCPUAdam.* to false"),
        (_on_card, {}, r"fused_adam\.FusedAdam steps on the card, but offload_optimizer"),
        (_on_card, UNFORCED, r"fused_adam\.FusedAdam steps on the card, but offload_optimizer"),
    ],
)
def test_an_optimizer_for_the_card_is_refused(make: Any, settings: Any, said: str) -> None:
    library.load()
    optimizer = make([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(MisconfigurationException, match=said):
        offload.check_stepping(_config(2, BOTH[0], **settings), optimizer)
    offload.check_stepping(_config(3, "offload_param", **settings), optimizer)


def test_cpu_adam_is_built_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.load()
    from deepspeed.ops.op_builder import CPUAdamBuilder

    monkeypatch.setenv("LIGHTNING_GAUDI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(CPUAdamBuilder, "_loaded_ops", {})
    for config in (
        _config(3),
        _config(3, "offload_param"),
        _config(2, BOTH[0], **UNFORCED),
        _with_optimizer("AdamW", torch_adam=True),
        _with_optimizer("SGD"),
    ):
        offload.prepare(config)
    for config in (_config(2, BOTH[0]), _with_optimizer("AdamW"), _with_optimizer("Adam")):
        with pytest.raises(OpBuildError, match=r"cpu_adam, .* no C\+\+ compiler"):
            offload.prepare(config)
