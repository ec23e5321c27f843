"""Frozen weights in four bits: Lightning's `BitsandbytesPrecision` on an HPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import BitsandbytesPrecision as FabricPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import BitsandbytesPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi import HPUBitsandbytesPrecision
from lightning_gaudi.fabric import HPUBitsandbytesPrecision as HPUFabricPrecision
from tests.helpers.trainers import run_trainers

bnb = pytest.importorskip("bitsandbytes", reason="needs the extra llm")
pytestmark = pytest.mark.filterwarnings(
    # bitsandbytes casts a bias where its layer gets float32.
    "ignore:torch.compile cuts HPUNF4:UserWarning",
    "ignore:.*does not have many workers:UserWarning",
)
NUM_STEPS = 20
REFUSED = ("fp4", "fp4-dq", "int8", "int8-training")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Adapted(pl.LightningModule):
    """Two frozen layers, and one beside them that learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64))
        self.base[2].bias.requires_grad_(False)
        self.left, self.right = nn.Parameter(torch.randn(64, 4)), nn.Parameter(torch.zeros(4, 64))
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.left.to(x) @ self.right.to(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = (self(batch[0]).float() - 1).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([self.left, self.right], lr=1e-2)


def _rows() -> Tensor:
    return torch.randn(160, 64, generator=torch.Generator().manual_seed(1))


def _trainer(plugin: Any, **settings: Any) -> Trainer:
    given = {"accelerator": "hpu", "devices": 1, "enable_checkpointing": False, **settings}
    return Trainer(plugins=plugin, max_epochs=1, **QUIET, **given)


def _fit(plugin: Any, rows: Tensor, devices: int = 1) -> list[float]:
    module = Adapted()
    loader = DataLoader(TensorDataset(rows), 8 // devices)
    _trainer(plugin, devices=devices, use_distributed_sampler=False).fit(module, loader)
    assert type(module.base[0]).__name__.startswith("HPUNF4")
    assert module.base[0].weight.dtype == torch.uint8
    return [loss.item() for loss in module.losses]


def _fit_on_cpu(mode: Any, dtype: torch.dtype) -> list[float]:
    """The same by a plain loop, with Lightning's own layers."""
    module = Adapted()
    plugin = FabricPrecision(mode, dtype)
    plugin.convert_module(module).to("cpu")
    optimizer = module.configure_optimizers()
    for batch in _rows().split(8):
        loss = module.training_step([batch.to(dtype)], 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [loss.item() for loss in module.losses]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dtype", "tolerance"),
    [
        ("nf4", torch.float32, 1e-5),
        ("nf4-dq", torch.float32, 1e-5),
        ("nf4-dq", torch.bfloat16, 2e-3),
    ],
)
def test_losses_are_the_cpu_s(mode: Any, dtype: torch.dtype, tolerance: float) -> None:
    losses = _fit(BitsandbytesPrecision(mode, dtype), _rows())
    assert len(losses) == NUM_STEPS
    assert losses[-1] < 0.9 * losses[0]
    assert losses == pytest.approx(_fit_on_cpu(mode, dtype), rel=tolerance)


def _on_two(rank: int) -> list[float]:
    rows = _rows()[rank::2]
    return _fit(BitsandbytesPrecision("nf4-dq", torch.float32), rows, devices=2)


@pytest.mark.slow
def test_two_cards_average_to_one(tmp_path: Path) -> None:
    ranks = run_trainers(_on_two, tmp_path, timeout=240)
    mean = [sum(losses) / 2 for losses in zip(*ranks, strict=True)]
    assert mean == pytest.approx(_fit_on_cpu("nf4-dq", torch.float32), rel=1e-5)


@pytest.mark.parametrize("mode", REFUSED)
def test_other_modes_are_refused_by_name(mode: Any) -> None:
    for make in (
        lambda: _trainer(BitsandbytesPrecision(mode)),
        lambda: Fabric(accelerator="hpu", devices=1, plugins=FabricPrecision(mode)),
        lambda: HPUBitsandbytesPrecision(mode),
        lambda: HPUFabricPrecision(mode),
    ):
        with pytest.raises(
            MisconfigurationException, match=rf"mode='{mode}'\) cannot .*Pass mode='nf4', or"
        ):
            make()


@pytest.mark.parametrize(
    ("kind", "ours"),
    [(BitsandbytesPrecision, HPUBitsandbytesPrecision), (FabricPrecision, HPUFabricPrecision)],
)
def test_an_hpu_computes_in_bfloat16_unless_told_otherwise(kind: Any, ours: Any) -> None:
    assert kind("nf4").dtype is ours("nf4").dtype is torch.bfloat16
    assert kind("nf4", dtype=torch.float32).dtype is torch.float32
    assert kind("int8").dtype is torch.float16
    with pytest.raises(MisconfigurationException, match=r"dtype=torch\.float16\) cannot be had"):
        ours("nf4", torch.float16)


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2", ModelParallelStrategy(2, 1)])
def test_a_strategy_that_cuts_weights_up_is_refused(strategy: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"and HPU\w+ cuts weights .*'hpu_ddp'"):
        _trainer(BitsandbytesPrecision("nf4"), devices=2, strategy=strategy)


def test_fabric_refuses_such_a_strategy_too() -> None:
    with pytest.raises(MisconfigurationException, match="HPUFSDPStrategy cuts weights"):
        Fabric(accelerator="hpu", devices=2, strategy="fsdp", plugins=FabricPrecision("nf4"))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda: bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False), "int8"),
        (lambda: bnb.nn.Linear4bit(64, 64, quant_type="fp4"), "fp4"),
    ],
)
def test_layers_that_are_quantized_otherwise_are_refused(layer: Any, kind: str) -> None:
    plugin = HPUFabricPrecision("nf4")
    model = nn.Sequential(nn.Linear(64, 64), layer())
    with pytest.raises(MisconfigurationException, match=rf"layer '1' is .* in {kind}, and Bits"):
        plugin.convert_module(model)


def _model(fabric: Fabric, **settings: Any) -> nn.Module:
    with fabric.init_module(**settings):
        return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8))


def test_weights_are_quantized_as_they_are_made_loaded_and_restored() -> None:
    fabric = Fabric(accelerator="hpu", devices=1, plugins=FabricPrecision("nf4-dq"))
    whole = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8))
    made = _model(fabric)
    assert (made[0].weight.device.type, made[0].weight.dtype) == ("hpu", torch.uint8)
    made.load_state_dict(whole.state_dict())
    weight = bnb.functional.dequantize_4bit(made[0].weight.data, made[0].weight.quant_state)
    assert 0 < (weight.cpu() - whole[0].weight).abs().max() < 0.03
    state = made.state_dict()
    assert state["0.weight"].dtype == torch.uint8
    again = _model(fabric, empty_init=True)
    again.load_state_dict({name: each.cpu() for name, each in state.items()})
    restored = again.state_dict()
    assert restored.keys() == state.keys()
    for name, each in state.items():
        assert torch.equal(restored[name].cpu(), each.cpu()), name
    rows = _rows()[:4].to("hpu", torch.bfloat16)
    assert torch.equal(made(rows), again(rows))
