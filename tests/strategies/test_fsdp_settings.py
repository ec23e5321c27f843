"""What of FSDP's arguments is taken over, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy as FabricFSDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.precision import FSDPPrecision
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from lightning_gaudi import HPUFSDPPrecision, HPUFSDPStrategy
from lightning_gaudi._core import vendor
from lightning_gaudi.fabric import HPUFSDPStrategy as FabricHPUFSDPStrategy
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import Block, Stack, loader

KINDS = {
    pl.Trainer: (FSDPStrategy, HPUFSDPStrategy),
    Fabric: (FabricFSDPStrategy, FabricHPUFSDPStrategy),
}


def trainer(**settings: Any) -> pl.Trainer:
    return pl.Trainer(**{"accelerator": "hpu", "devices": 2, **QUIET, **settings})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "is_offloaded"), [("fsdp", False), ("fsdp_cpu_offload", True)])
def test_names_are_those_of_lightning(kind: Any, name: str, is_offloaded: bool) -> None:
    strategy = kind(accelerator="hpu", devices=2, strategy=name).strategy
    assert type(strategy) is KINDS[kind][1]
    assert strategy.cpu_offload.offload_params is is_offloaded


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"device_mesh": (2, 2)},
            r"device_mesh=\(2, 2\), sharding_strategy='FULL_SHARD'\): two sizes, of copies and of "
            "shards, go with 'HYBRID_SHARD'",
        ),
        (
            {"device_mesh": (4,), "sharding_strategy": "HYBRID_SHARD"},
            r"device_mesh=\(4,\), sharding_strategy='HYBRID_SHARD'\): two sizes",
        ),
        (
            {"device_mesh": (4, 1), "sharding_strategy": "HYBRID_SHARD"},
            r"device_mesh=\(4, 1\), .* leaves each card a whole copy",
        ),
        ({"device_id": 1}, r"device_id=1\): the strategy gives each process its card"),
        ({"state_dict_type": "local"}, r"state_dict_type='local'\) is no kind of checkpoint"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    kind: Any, arguments: dict[str, Any], message: str
) -> None:
    strategy = KINDS[kind][0](**arguments)
    with pytest.raises(MisconfigurationException, match=message):
        kind(accelerator="hpu", devices=4, strategy=strategy)


@pytest.mark.parametrize("kind", KINDS)
def test_lazy_mode_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "is_lazy", lambda: True)
    message = "strategy='fsdp' trains in the vendor's eager mode only.*Set PT_HPU_LAZY_MODE=0"
    with pytest.raises(MisconfigurationException, match=message):
        kind(accelerator="hpu", devices=2, strategy="fsdp")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["64-true", "transformer-engine-float16"])
def test_precision_that_gaudi_lacks_is_refused(kind: Any, precision: str) -> None:
    message = f"precision='{precision}' is not supported with accelerator='hpu'"
    with pytest.raises(MisconfigurationException, match=message):
        kind(accelerator="hpu", devices=2, strategy="fsdp", precision=precision)


def test_scaler_goes_with_float16_alone() -> None:
    with pytest.raises(MisconfigurationException, match=r"precision='bf16-mixed', scaler=\.\.\."):
        HPUFSDPPrecision("bf16-mixed", ShardedGradScaler("hpu"))
    with pytest.raises(MisconfigurationException, match=r"has a GradScaler, .* ShardedGradScaler"):
        HPUFSDPPrecision("16-mixed", torch.amp.GradScaler("hpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_lightnings_own_plugin_computes_on_the_hpu(precision: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its scaler misses CUDA
        plugin = FSDPPrecision(precision)
    found = trainer(strategy="fsdp", plugins=[plugin]).precision_plugin
    assert found is plugin
    with found.forward_context():
        assert torch.is_autocast_enabled("hpu")
    if precision == "16-mixed":
        assert found.scaler.is_enabled()
        assert found.scaler._device == "hpu"


@pytest.mark.parametrize(
    ("precision", "shards", "sent"),
    [
        ("32-true", torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("16-mixed", torch.float32, torch.float16),
        ("16-true", torch.float16, torch.float16),
    ],
)
def test_precision_of_shards_and_messages(
    precision: str, shards: torch.dtype, sent: torch.dtype
) -> None:
    plugin = HPUFSDPPrecision(precision)
    with plugin.module_init_context():
        module = plugin.convert_module(torch.nn.Linear(2, 2))
    assert module.weight.dtype == shards
    assert plugin.mixed_precision_config.reduce_dtype == sent


def _fit(strategy: Any, **settings: Any) -> list[float]:
    model = Stack()
    trainer(strategy=strategy, devices=1, max_steps=2, **settings).fit(model, loader(0, 1))
    return [loss.item() for loss in model.losses]


def _error(run: Any) -> str:
    with pytest.raises(MisconfigurationException) as error:
        run()
    return str(error.value)


def _hybrid() -> FSDPStrategy:
    return FSDPStrategy(sharding_strategy="HYBRID_SHARD", auto_wrap_policy={Block})


def _on_gaudi1(rank: int) -> dict[str, Any]:
    config = MixedPrecision(param_dtype=torch.float16)

    def fabric() -> None:
        Fabric(accelerator="hpu", devices=1, strategy="fsdp", precision="16-true").launch()

    return {
        "errors": [
            _error(lambda: _fit("fsdp", precision="16-mixed")),
            _error(fabric),
            _error(lambda: _fit(FSDPStrategy(mixed_precision=config))),
        ],
        "losses": _fit(_hybrid(), precision="bf16-mixed"),
    }


@pytest.mark.slow
def test_float16_is_refused_on_a_card_without_it(tmp_path: Any) -> None:
    env = {"LIGHTNING_GAUDI_SIMULATE_CARD": "gaudi1"}
    (found,) = run_trainers(_on_gaudi1, tmp_path, num_ranks=1, env=env)
    by_name, in_fabric, by_config = found["errors"]
    needs = "needs a card that computes in float16, which GAUDI does not. Pass"
    assert by_name.startswith(f"precision='16-mixed' {needs} precision='bf16-mixed'")
    assert in_fabric.startswith(f"precision='16-true' {needs} precision='bf16-true'")
    assert by_config.startswith(f"FSDPStrategy(mixed_precision=...) with torch.float16 {needs}")
    assert len(found["losses"]) == 2
