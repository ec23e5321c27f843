"""A Trainer on one card against the same one on the CPU, and its checkpoints.

The tolerances are those of real silicon. fp32: 2e-3 after ten steps, since the card sums products
in another order than the CPU and may hold fewer bits of them. bf16 has 8 bits of mantissa, 4e-3 of
a value at each operation: 5e-2 of the loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from lightning_gaudi._core import vendor
from tests.helpers.tiny import QUIET, TinyModule, batches

NUM_STEPS = 10


def _trainer(device: str, folder: Path, **settings: Any) -> pl.Trainer:
    defaults = {**QUIET, "max_steps": NUM_STEPS, "default_root_dir": folder}
    return pl.Trainer(accelerator=device, devices=1, **{**defaults, **settings})


def _module(kind: type[TinyModule] = TinyModule, dropout: float = 0.0) -> TinyModule:
    torch.manual_seed(3)
    return kind(dropout=dropout)


def _fit(
    device: str, folder: Path, module: TinyModule | None = None, **settings: Any
) -> TinyModule:
    module = module or _module()
    torch.manual_seed(4)
    _trainer(device, folder, **settings).fit(module, batches(NUM_STEPS))
    return module


def _losses(module: TinyModule) -> Tensor:
    return torch.stack([loss.cpu().float() for loss in module.losses])


def _weights(module: TinyModule) -> list[Tensor]:
    return [parameter.detach().cpu() for parameter in module.parameters()]


class _Watched(TinyModule):
    """Remembers where and in which types it computed."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        hidden = self.net[0](batch[0])
        self.seen = {
            "batch": str(batch[0].device),
            "hidden": (str(hidden.device), hidden.dtype),
            "weights": {(str(p.device), p.dtype) for p in self.parameters()},
        }
        return loss


@pytest.mark.parametrize(
    ("precision", "hidden", "weights"),
    [
        ("32-true", torch.float32, torch.float32),
        ("bf16-mixed", torch.bfloat16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
    ],
)
def test_fit_computes_on_the_card_in_the_type_asked_for(
    precision: Any, hidden: torch.dtype, weights: torch.dtype, tmp_path: Path
) -> None:
    module = _module(_Watched)
    _fit("hpu", tmp_path, module, precision=precision)
    assert module.seen == {
        "batch": "hpu:0",
        "hidden": ("hpu:0", hidden),
        "weights": {("hpu:0", weights)},
    }


def test_fp32_fit_is_that_of_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_hpu = _fit("cpu", tmp_path), _fit("hpu", tmp_path)
    torch.testing.assert_close(_losses(on_hpu), _losses(on_cpu), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(_weights(on_hpu), _weights(on_cpu), rtol=2e-3, atol=2e-3)
    assert _losses(on_hpu)[-3:].mean() < _losses(on_hpu)[:3].mean()


def test_bf16_mixed_fit_stays_near_the_cpu(tmp_path: Path) -> None:
    on_cpu = _fit("cpu", tmp_path)
    on_hpu = _fit("hpu", tmp_path, precision="bf16-mixed")
    torch.testing.assert_close(_losses(on_hpu), _losses(on_cpu), rtol=5e-2, atol=5e-2)


def test_a_lazy_training_step_reuses_its_graphs(tmp_path: Path) -> None:
    """After the first steps nothing is compiled any more."""
    if not vendor.is_lazy():
        pytest.skip("needs lazy mode: PT_HPU_LAZY_MODE=1 (`make test-gaudi` runs both modes)")
    counts = []

    class Counting(TinyModule):
        def on_train_batch_end(self, *args: Any) -> None:
            counts.append(vendor.metric("graph_compilation"))

    _fit("hpu", tmp_path, _module(Counting))
    numbers = [count["TotalNumber"] for count in counts if count is not None]
    assert numbers[3:] == [numbers[3]] * (NUM_STEPS - 3)


def test_checkpoint_holds_cpu_tensors_and_restores(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    trainer = _trainer("hpu", tmp_path, max_steps=3)
    module = _module()
    trainer.fit(module, batches(3))
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    tensors = [*saved["state_dict"].values()]
    tensors += [v for s in saved["optimizer_states"][0]["state"].values() for v in s.values()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    restored = TinyModule.load_from_checkpoint(path, map_location="cpu")
    for ours, theirs in zip(_weights(restored), _weights(module), strict=True):
        assert torch.equal(ours, theirs)


def test_resumed_run_goes_on_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """Dropout of one half: without the generator's state the losses would be far apart.

    Every epoch is the same batch, so that it does not matter how Lightning counts batches.
    """
    modules = [_module(dropout=0.5) for _ in range(3)]
    epoch, path = batches(1), tmp_path / "epoch.ckpt"
    torch.manual_seed(4)
    _trainer("hpu", tmp_path).fit(modules[0], epoch)
    torch.manual_seed(4)
    trainer = _trainer("hpu", tmp_path, max_steps=NUM_STEPS // 2)
    trainer.fit(modules[1], epoch)
    trainer.save_checkpoint(path)
    torch.manual_seed(5)
    _trainer("hpu", tmp_path).fit(modules[2], epoch, ckpt_path=path)
    whole, first, second = map(_losses, modules)
    assert whole.shape == (NUM_STEPS,)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=2e-3, atol=2e-3)
