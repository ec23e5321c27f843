"""`gradient_clip_val` is a kernel of the vendor's, and the user's own clipping stays the user's."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi import vendor
from tests.helpers.tiny import QUIET, TinyModule, batches

NUM_STEPS = 4
CLIP = 0.05


def _count(metric: str) -> int:
    found = vendor.metric(metric)
    assert found is not None
    return int(found["TotalNumber"])


class _Deep(TinyModule):
    """Some weights are frozen. Notes launches and waits of each optimizer's step."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        )
        self.net[2].requires_grad_(False)
        self.launches: list[int] = []
        self.waits: list[int] = []

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:  # type: ignore[override]
        def counting() -> Any:
            loss = closure()
            self.launches.append(_count("launch"))
            self.waits.append(_count("host_sync"))
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, counting)
        if self.launches:
            self.launches[-1] = _count("launch") - self.launches[-1]
            self.waits[-1] = _count("host_sync") - self.waits[-1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # Frozen weights and an empty group, as a user may have them.
        weights = [*self.parameters()]
        return torch.optim.SGD([{"params": weights}, {"params": []}], lr=0.1)


class _ByHook(_Deep):
    """Clips in the hook for that, half as far."""

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: Any = None,
        gradient_clip_algorithm: Any = None,
    ) -> None:
        self.clip_gradients(optimizer, CLIP / 2, "norm")


class _Manual(_Deep):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, CLIP, "norm")
        optimizer.step()
        optimizer.zero_grad()
        return loss


def _fit(kind: type[_Deep], accelerator: str = "hpu", **settings: Any) -> _Deep:
    model = kind()
    trainer = pl.Trainer(
        accelerator=accelerator, devices=1, max_steps=NUM_STEPS, **QUIET, **settings
    )
    trainer.fit(model, batches(2 * NUM_STEPS))
    return model


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (_Deep, {"gradient_clip_val": CLIP}),
        (_Deep, {"gradient_clip_val": CLIP, "accumulate_grad_batches": 2}),
        (_ByHook, {}),
        (_Manual, {}),
    ],
    ids=["trainer", "accumulated", "hook", "manual"],
)
def test_training_is_the_cpus(
    kind: type[_Deep], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    kernel = vendor.fused_clip_norm
    monkeypatch.setattr(
        vendor, "fused_clip_norm", lambda *args: (calls.append(args[1]), kernel(*args))[1]
    )
    ours = _fit(kind, **settings)
    expected = _fit(kind, accelerator="cpu", **settings)
    assert calls == [CLIP / 2 if kind is _ByHook else CLIP] * NUM_STEPS
    for mine, other in zip(ours.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_clipping_adds_one_launch_to_a_step() -> None:
    plain, clipped = _fit(_Deep), _fit(_Deep, gradient_clip_val=CLIP)
    added = [b - a for a, b in zip(plain.launches, clipped.launches, strict=True)]
    assert added[1:] == [1] * (NUM_STEPS - 1)  # the first step fills the limit
    assert plain.waits == clipped.waits == [0] * NUM_STEPS


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_clipping_is_one_kernel_in_bf16_too(precision: Any) -> None:
    plain, clipped = (_fit(_Deep, precision=precision, gradient_clip_val=v) for v in (None, CLIP))
    assert clipped.launches[-1] - plain.launches[-1] == 1


def test_a_compiled_models_gradients_are_clipped_by_the_kernel() -> None:
    class Compiled(_Deep):
        def configure_model(self) -> None:
            self.net.compile(backend="hpu_backend")

    ours, expected = _fit(Compiled, gradient_clip_val=CLIP), _fit(_Deep, gradient_clip_val=CLIP)
    assert ours.launches[-1] == expected.launches[-1]
    for mine, other in zip(ours.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
