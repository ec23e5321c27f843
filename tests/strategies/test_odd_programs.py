"""Loaders and optimizers as people write them: as on a CPU, and resumed as if never ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from tests.helpers import odd
from tests.helpers.tiny import QUIET

pytestmark = pytest.mark.filterwarnings("ignore")

IN_FIRST_EPOCH, IN_SECOND_EPOCH = 3, 5
"""Steps after which a fit resumes; an epoch of some loaders has three."""
BEGINS_ANEW = "cannot go on exactly there"

Losses = Sequence[float]


class Model(pl.LightningModule):
    """Keeps the loss of each batch."""

    def __init__(self, optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(odd.NUM_FEATURES, 16), nn.GELU(), nn.Linear(16, 1))
        self.make_optimizer = optimizer
        self.losses: dict[int, float] = {}

    def loss(self, x: Tensor) -> Tensor:
        return (self.net(x).squeeze(-1) - x.sum(-1)).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(odd.tensor_of(batch))
        self.losses.setdefault(self.global_step, float(loss))
        return loss

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self)


class ByHand(Model):
    """The same, with manual optimization."""

    def __init__(self, optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__(optimizer)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        x, step = odd.tensor_of(batch), self.global_step

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(x)
            self.losses.setdefault(step, float(loss))
            self.manual_backward(loss)
            return loss.detach()

        optimizer.step(closure=closure)


class Clipped(ByHand):
    """Clips by hand, too."""

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        loss = self.loss(odd.tensor_of(batch))
        self.losses.setdefault(self.global_step, float(loss))
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5)
        optimizer.step()


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1e-2)


def _fit(
    folder: Path,
    model: Model,
    loader: Any,
    accelerator: str = "hpu",
    resumed_after: int | None = None,
    **settings: Any,
) -> Losses:
    """The loss at the beginning of each step, on the CPU."""
    keep = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    settings = {**QUIET, "enable_checkpointing": True, "limit_train_batches": 4, **settings}
    torch.manual_seed(7)
    pl.Trainer(accelerator=accelerator, devices=1, max_epochs=2, callbacks=[keep], **settings).fit(
        model, loader, ckpt_path=resumed_after and folder / f"step={resumed_after}.ckpt"
    )
    return [*model.losses.values()]


@pytest.mark.slow_but("that_changes_its_length", "batches_drawn_by_the_user")
@pytest.mark.parametrize("name", odd.LOADERS)
def test_a_fit_goes_through_an_odd_loader_as_on_a_cpu(name: str, tmp_path: Path) -> None:
    make = odd.LOADERS[name]
    expected = _fit(tmp_path / "cpu", Model(_sgd), make(), accelerator="cpu")
    found = _fit(tmp_path, Model(_sgd), make())
    assert len(found) >= 6
    assert found == pytest.approx(expected, rel=1e-5)

    for step in (IN_FIRST_EPOCH, IN_SECOND_EPOCH):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            resumed = _fit(tmp_path, Model(_sgd), make(), resumed_after=step)
        if not any(BEGINS_ANEW in str(each.message) for each in warned):
            assert resumed == found[step:]


@pytest.mark.slow_but(
    "schedule_with_state_of_its_own-ByHand",
    "none-ByHand",
    "none-Model",
    "group_that_is_empty-ByHand",
    "state_that_is_no_tensor-ByHand",
)
@pytest.mark.parametrize("kind", [Model, ByHand])
@pytest.mark.parametrize("name", odd.OPTIMIZERS)
def test_an_odd_optimizer_steps_as_on_a_cpu(name: str, kind: type[Model], tmp_path: Path) -> None:
    make, loader = odd.OPTIMIZERS[name], odd.LOADERS["data_set_that_is_a_list"]
    if kind is ByHand and name in ("none", "schedule_with_state_of_its_own"):
        pytest.skip("stepped by Lightning alone")
    expected = _fit(tmp_path / "cpu", kind(make), loader(), accelerator="cpu")
    found = _fit(tmp_path, kind(make), loader())
    assert found == pytest.approx(expected, rel=1e-5)

    if name != "none":  # Lightning counts no steps without an optimizer
        for step in (IN_FIRST_EPOCH, IN_SECOND_EPOCH):
            assert _fit(tmp_path, kind(make), loader(), resumed_after=step) == found[step:]


@pytest.mark.parametrize("name", ["lookahead", "state_that_is_no_tensor", "hooks_on_the_optimizer"])
def test_gradients_of_an_odd_optimizer_are_clipped_unscaled(name: str, tmp_path: Path) -> None:
    make, loader = odd.OPTIMIZERS[name], odd.LOADERS["data_set_that_is_a_dict"]
    expected = _fit(tmp_path, Clipped(make), loader())
    found = _fit(tmp_path / "16", Clipped(make), loader(), precision="16-mixed")
    assert found == pytest.approx(expected, rel=2e-2)


def test_what_a_held_optimizer_keeps_of_shards_is_said_to_be_lost(tmp_path: Path) -> None:
    make, loader = odd.OPTIMIZERS["lookahead"], odd.LOADERS["data_set_by_protocol"]
    lost = r"Optimizer 0\.inner \(SGD\) is held by another one, and HPUFSDPStrategy saves"
    with pytest.warns(UserWarning, match=lost):
        _fit(tmp_path, Model(make), loader(), strategy="fsdp", precision="32-true")


@pytest.mark.parametrize("name", odd.OPTIMIZERS)
def test_fabric_steps_an_odd_optimizer_as_on_a_cpu(name: str) -> None:
    def losses(accelerator: str) -> Losses:
        fabric = Fabric(accelerator=accelerator, devices=1)
        model = Model(odd.OPTIMIZERS[name])
        made = model.configure_optimizers()
        made = made[0][0] if isinstance(made, tuple) else made
        module: Any = fabric.setup_module(model.net)
        optimizer = made and fabric.setup_optimizers(made)
        found = []
        for x in fabric.setup_dataloaders(odd.LOADERS["data_set_that_is_a_dict"]()):

            def closure(x: Tensor = x) -> Tensor:
                loss: Tensor = (module(x).squeeze(-1) - x.sum(-1)).square().mean()
                if optimizer:
                    optimizer.zero_grad()
                fabric.backward(loss)
                found.append(float(loss))
                return loss.detach()

            optimizer.step(closure=closure) if optimizer else closure()
        return found

    assert losses("hpu") == pytest.approx(losses("cpu"), rel=1e-5)
