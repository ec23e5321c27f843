"""Training in float16 on one card, held to the same autocast and scaler on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional

from lightning_gaudi import HPUPrecisionPlugin, vendor
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, batches, hpu_trainer
from tests.strategies.ddp_cases import Gan, loader

NUM_STEPS = 6
CLIP = 0.5
LR = 0.01


def _net() -> nn.Module:
    """Of what both autocasts compute in float16."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def _loss(net: nn.Module, features: Tensor) -> Tensor:
    # Its gradients overflow at the scale that a scaler begins with, and some steps later do not.
    return functional.mse_loss(net(features).float(), 3 * features.sum(-1, keepdim=True))


class Model(pl.LightningModule):
    """Notes the loss, the scale and the waits of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _net()
        self.losses: list[Tensor] = []
        self.waits: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        names = ("host_sync", "cpu_fallback")
        self.waits.append(tuple(vendor.metric(name)["TotalNumber"] for name in names))  # type: ignore[index, arg-type]
        loss = _loss(self.net, batch[0])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LR)


def _fit(model: pl.LightningModule | None = None, **settings: Any) -> tuple[Any, pl.Trainer]:
    model = model or Model()
    settings = {"max_steps": NUM_STEPS, "precision": "16-mixed", **settings}
    trainer = hpu_trainer(**settings)
    trainer.fit(model, batches(2 * NUM_STEPS))
    return model, trainer


def on_cpu(accumulate: int = 1, clip: float | None = None) -> tuple[list[Tensor], nn.Module, Any]:
    """The same by torch alone."""
    net, scaler, losses = _net(), GradScaler("cpu"), []
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for batch_idx, (features,) in enumerate(batches(NUM_STEPS * accumulate)):
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            loss = _loss(net, features)
        losses.append(loss.detach())
        scaler.scale(loss / accumulate).backward()
        if (batch_idx + 1) % accumulate == 0:
            scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return losses, net, scaler


def check(accumulate: int, clip: float | None) -> None:
    """Hold a training to the CPU's: losses, weights, the scale, and what it waits for."""
    model, trainer = _fit(accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    losses, net, scaler = on_cpu(accumulate, clip)
    assert trainer.precision_plugin.state_dict() == scaler.state_dict()
    assert scaler.get_scale() < 2.0**16, "no step has overflowed"
    assert scaler.state_dict()["_growth_tracker"] > 0, "all steps have"
    torch.testing.assert_close(
        torch.stack(model.losses).cpu(), torch.stack(losses), rtol=1e-3, atol=0
    )
    for mine, other in zip(model.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-3)
    waited = [
        (b[0] - a[0], b[1] - a[1]) for a, b in zip(model.waits, model.waits[1:], strict=False)
    ]
    steps = [int((i + 1) % accumulate == 0) for i in range(len(waited))]
    assert waited == [(is_step, 0) for is_step in steps]


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (1, CLIP), (2, CLIP)])
def test_training_is_the_cpus_and_a_step_waits_once(accumulate: int, clip: float | None) -> None:
    check(accumulate, clip)


def test_training_is_the_cpus_in_lazy_mode() -> None:
    fork_python(
        "from tests.strategies.test_float16 import check; check(2, 0.5)",
        env={"PT_HPU_LAZY_MODE": "1"},
    )


def test_a_run_goes_on_with_the_scale_and_the_bits_it_had(tmp_path: Path) -> None:
    whole, trainer = _fit(max_epochs=2, max_steps=-1)
    half, first = _fit(max_epochs=1, max_steps=-1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest = Model()
    second = hpu_trainer(max_epochs=2, precision="16-mixed")
    second.fit(rest, batches(2 * NUM_STEPS), ckpt_path=tmp_path / "half.ckpt")
    assert second.precision_plugin.state_dict() == trainer.precision_plugin.state_dict()
    for mine, other in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(torch.stack(half.losses + rest.losses), torch.stack(whole.losses))


def test_a_run_goes_on_with_the_scale_of_another_device(tmp_path: Path) -> None:
    """As Lightning saves it on GPUs, under the name of its own plugin."""
    _, trainer = _fit(max_epochs=1, max_steps=-1)
    trainer.save_checkpoint(tmp_path / "hpu.ckpt")
    checkpoint = torch.load(tmp_path / "hpu.ckpt")
    checkpoint["MixedPrecision"] = checkpoint.pop("HPUPrecisionPlugin") | {"scale": 64.0}
    torch.save(checkpoint, tmp_path / "gpu.ckpt")
    second = hpu_trainer(max_epochs=1, precision="16-mixed")
    second.fit(Model(), batches(2 * NUM_STEPS), ckpt_path=tmp_path / "gpu.ckpt")
    assert second.precision_plugin.state_dict()["scale"] == 64.0


def test_several_optimizers_are_stepped_by_hand() -> None:
    fitted = {}
    for precision in ("32-true", "16-mixed"):
        scaler = GradScaler("hpu", init_scale=256.0) if precision == "16-mixed" else None
        plugin = HPUPrecisionPlugin(precision, scaler=scaler)  # type: ignore[arg-type]
        torch.manual_seed(0)
        fitted[precision] = Gan()
        hpu_trainer(max_steps=20, plugins=[plugin]).fit(fitted[precision], loader(0, 1))
    assert plugin.state_dict()["_growth_tracker"] == 20
    torch.manual_seed(0)
    start = Gan()
    for name, weight in fitted["32-true"].named_parameters():
        moved = weight - start.get_parameter(name)
        off = fitted["16-mixed"].get_parameter(name) - weight
        assert off.norm() < 0.3 * moved.norm() + 1e-6, name


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # a first overflow
def test_a_schedule_steps_with_the_trainer_as_on_other_devices() -> None:
    class Scheduled(Model):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    _, trainer = _fit(Scheduled(), gradient_clip_val=CLIP)
    assert trainer.optimizers[0].param_groups[0]["lr"] == LR * 0.5**NUM_STEPS
    assert trainer.precision_plugin.scaler.get_scale() < 2.0**16


def test_lbfgs_is_refused() -> None:
    class ByLBFGS(Model):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(MisconfigurationException, match="LBFGS"):
        _fit(ByLBFGS())


def test_weights_in_float16_train_without_a_scale() -> None:
    model, trainer = _fit(precision="16-true")
    assert {weight.dtype for weight in model.parameters()} == {torch.float16}
    assert trainer.precision_plugin.state_dict() == {}
    torch.testing.assert_close(model.losses[0].cpu(), on_cpu()[0][0], rtol=1e-2, atol=0)


def test_fabric_trains_as_the_cpu_and_restores_its_scale() -> None:
    fabric = Fabric(accelerator="hpu", devices=1, precision="16-mixed")
    net = _net()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=LR))
    losses = []
    for (features,) in batches(NUM_STEPS):
        loss = _loss(net, features.to(fabric.device))
        losses.append(loss.detach().cpu())
        fabric.backward(loss)
        fabric.clip_gradients(net, optimizer, max_norm=CLIP, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
    expected, _, scaler = on_cpu(clip=CLIP)
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-3, atol=0)
    precision = fabric.strategy.precision
    assert precision.state_dict() == scaler.state_dict()
    other = Fabric(accelerator="hpu", devices=1, precision="16-mixed").strategy.precision
    other.load_state_dict(precision.state_dict())
    assert other.scaler.get_scale() == scaler.get_scale()


def test_fabric_has_losses_go_through_its_backward() -> None:
    fabric = Fabric(accelerator="hpu", devices=1, precision="16-mixed")
    net = fabric.setup(_net())
    with pytest.raises(RuntimeError, match=r"call `fabric\.backward"):
        net(torch.ones(2, 8, device=fabric.device)).sum().backward()


def refusals() -> list[str]:
    """What a card without float16 says, whoever asks."""
    fits: list[Any] = [
        lambda: _fit(precision="16-mixed"),
        lambda: _fit(precision="16-true"),
        lambda: _fit(precision=None, plugins=[MixedPrecision("16-mixed", "hpu")]),
        lambda: _fit(precision=None, plugins=[HalfPrecision("16-true")]),
        lambda: Fabric(accelerator="hpu", devices=1, precision="16-true").setup(_net()),
    ]
    found = []
    for fit in fits:
        with pytest.raises(MisconfigurationException) as error:
            fit()
        found.append(str(error.value))
    pl.Trainer(accelerator="hpu", devices=1, precision="16-mixed", **QUIET)  # asks no card yet
    return found


def test_a_card_without_float16_refuses_before_training() -> None:
    fork_python(
        """
        from tests.strategies.test_float16 import refusals
        for kind, found in zip(("mixed", "true", "mixed", "true", "true"), refusals(), strict=True):
            assert found == (
                f"precision='16-{kind}' needs a card that computes in float16, which GAUDI does "
                f"not. Pass precision='bf16-{kind}', or use another card."
            ), found
        """,
        env={"LIGHTNING_GAUDI_SIMULATE_CARD": "gaudi1"},
    )
