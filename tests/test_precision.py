from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from torch import Tensor, nn

from lightning_gaudi import HPUPrecisionPlugin
from lightning_gaudi._core.precision.autocast_ops import VARIABLES, check_op_lists
from lightning_gaudi._core.precision.grad_scaler import HPUGradScaler
from tests.helpers.tiny import TinyModule, batches, hpu_trainer


class _Dtypes(TinyModule):
    """Notes the dtypes that a training step sees."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        hidden = self.net[0](batch[0])
        self.seen = {
            "input": batch[0].dtype,
            "weight": self.net[0].weight.dtype,
            "matmul": hidden.dtype,
            "layer_norm": nn.functional.layer_norm(hidden.float(), (16,)).dtype,
            "softmax": hidden.float().softmax(-1).dtype,
            "exp": hidden.exp().dtype,
            "new": torch.zeros(1).dtype,
        }
        return super().training_step(batch, batch_idx)


def _seen(precision: str, max_steps: int = 2) -> tuple[dict[str, torch.dtype], _Dtypes]:
    model = _Dtypes()
    hpu_trainer(precision=precision, max_steps=max_steps).fit(model, batches(2))
    return model.seen, model


def test_bf16_mixed_computes_in_the_vendors_dtypes_with_fp32_weights() -> None:
    seen, model = _seen("bf16-mixed")
    assert seen == {
        "input": torch.float32,
        "weight": torch.float32,
        "matmul": torch.bfloat16,
        "layer_norm": torch.bfloat16,
        "softmax": torch.bfloat16,
        "exp": torch.float32,
        "new": torch.float32,
    }
    state = model.trainer.optimizers[0].state[model.net[0].weight]
    assert state["exp_avg"].dtype == torch.float32


def test_bf16_true_holds_weights_and_inputs_in_bf16() -> None:
    seen, model = _seen("bf16-true")
    assert {seen[name] for name in ("input", "weight", "matmul", "new")} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    assert {loss.dtype for loss in model.losses} == {torch.bfloat16}


def test_16_mixed_computes_in_float16_where_bf16_mixed_does_in_bf16() -> None:
    halves, _ = _seen("16-mixed")
    bf16, _ = _seen("bf16-mixed")
    swapped = {torch.bfloat16: torch.float16}
    assert halves == {name: swapped.get(dtype, dtype) for name, dtype in bf16.items()}


class _ByHand(TinyModule):
    """Two layers with an optimizer each, whose gradients are clipped by hand."""

    def __init__(self, algorithm: str, *, both_first: bool = False) -> None:
        super().__init__(dropout=0.0)
        self.automatic_optimization = False
        self.algorithm, self.both_first = algorithm, both_first

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            for _ in range(2):  # the second changes nothing
                self.clip_gradients(optimizer, 0.01, self.algorithm)
            self.untoggle_optimizer(optimizer)
            if not self.both_first:
                optimizer.step()
        if self.both_first:
            for optimizer in optimizers:
                optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[layer].parameters(), lr=0.5) for layer in (0, 3)]


def _exactly(precision: str) -> dict[str, Any]:
    """A precision, with a scale at which no step overflows."""
    if precision != "16-mixed":
        return {"precision": precision}
    scaler = torch.amp.GradScaler("hpu", init_scale=256.0)
    return {"plugins": HPUPrecisionPlugin(precision, scaler=scaler)}


@pytest.mark.parametrize("both_first", [False, True])
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_by_hand_sees_unscaled_gradients(algorithm: str, both_first: bool) -> None:
    found = {}
    for precision in ("16-mixed", "32-true"):
        torch.manual_seed(0)
        model = _ByHand(algorithm, both_first=both_first)
        before = [each.clone() for each in model.parameters()]
        hpu_trainer(**_exactly(precision), max_epochs=2).fit(model, batches(4))
        after = [each.detach().cpu() for each in model.parameters()]
        found[precision] = torch.cat(
            [(a - b).flatten() for a, b in zip(after, before, strict=True)]
        )
    torch.testing.assert_close(found["16-mixed"], found["32-true"], rtol=0.02, atol=2e-4)
    assert found["32-true"].norm() > 0.01


def test_a_backward_onto_gradients_that_were_clipped_by_hand_is_refused() -> None:
    class Accumulates(_ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer, _ = self.optimizers()
            for _ in range(2):
                self.manual_backward(TinyModule.training_step(self, batch, batch_idx))
                self.clip_gradients(optimizer, 0.01, "norm")

    with pytest.raises(RuntimeError, match="clip_gradients after the last backward before opt"):
        hpu_trainer(precision="16-mixed", max_steps=1).fit(Accumulates("norm"), batches(1))


def test_gradients_that_are_clipped_and_never_stepped_are_unscaled_anew() -> None:
    class Skips(_ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer, _ = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(TinyModule.training_step(self, batch, batch_idx))
            self.clip_gradients(optimizer, 0.01, "norm")
            norms.append(torch.nn.utils.get_total_norm([self.net[0].weight.grad]).item())

    norms: list[float] = []
    hpu_trainer(**_exactly("16-mixed"), max_epochs=1).fit(Skips("norm"), batches(3))
    assert len(norms) == 3
    assert all(0.001 < norm <= 0.0101 for norm in norms)


def test_16_true_holds_weights_and_inputs_in_float16() -> None:
    seen, model = _seen("16-true", max_steps=1)  # Adam's epsilon is 0 in float16
    assert {seen[name] for name in ("input", "weight", "matmul", "new")} == {torch.float16}
    assert model.trainer.precision_plugin.scaler is None


def test_32_true_computes_in_fp32() -> None:
    seen, _ = _seen("32-true")
    assert set(seen.values()) == {torch.float32}


@pytest.mark.parametrize(
    "precision",
    ["64-true", "transformer-engine-float16"],
)
def test_other_precisions_are_refused_with_what_hpu_supports(precision: str) -> None:
    message = f"precision='{precision}'.*'32-true', .*'bf16-true', '16-mixed', '16-true'"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(precision=precision)
    with pytest.raises(MisconfigurationException, match=message):
        HPUPrecisionPlugin(precision)  # type: ignore[arg-type]


def test_unknown_precision_is_named() -> None:
    message = "precision='bf17-mixed' is not supported.*'32-true', 'bf16-mixed', 'bf16-true'"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(precision="bf17-mixed")
    with pytest.raises(ValueError, match="'bf17-mixed' is invalid"):
        hpu_trainer(accelerator="cpu", precision="bf17-mixed")


@pytest.mark.parametrize(
    "plugin",
    [MixedPrecision("bf16-mixed", "cuda"), MixedPrecision("bf16-mixed", "cpu"), DoublePrecision()],
    ids=["cuda", "cpu", "double"],
)
def test_plugins_for_other_devices_are_refused(plugin: Precision) -> None:
    with pytest.raises(
        MisconfigurationException, match=rf"plugins={type(plugin).__name__}.*'bf16-mixed'"
    ):
        hpu_trainer(plugins=[plugin])


@pytest.mark.parametrize(
    "plugin",
    [
        HPUPrecisionPlugin("bf16-mixed"),
        HalfPrecision("bf16-true"),
        MixedPrecision("16-mixed", "hpu"),
        Precision(),
    ],
    ids=["ours", "half", "mixed", "fp32"],
)
def test_plugins_that_hold_on_hpu_are_taken(plugin: Precision) -> None:
    assert hpu_trainer(plugins=[plugin]).precision_plugin is plugin


@pytest.mark.parametrize(
    ("precision", "device", "message"),
    [
        ("bf16-mixed", "hpu", r"precision='bf16-mixed', scaler=\.\.\.\) scales no loss"),
        ("16-mixed", "cpu", r"scaler=\.\.\.\) has one for device 'cpu'.*GradScaler\('hpu'"),
    ],
)
def test_scaler_that_does_not_go_with_it_is_refused(
    precision: Any, device: str, message: str
) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        HPUPrecisionPlugin(precision, scaler=torch.amp.GradScaler(device))


def test_scaler_of_the_users_keeps_its_settings() -> None:
    scaler = torch.amp.GradScaler("hpu", init_scale=4.0)
    for plugin in (
        HPUPrecisionPlugin("16-mixed", scaler=scaler),
        hpu_trainer(plugins=[MixedPrecision("16-mixed", "hpu", scaler)]).precision_plugin,
    ):
        assert plugin.scaler is scaler
        assert isinstance(scaler, HPUGradScaler)
        assert scaler.get_scale() == 4.0


@pytest.fixture(params=VARIABLES)
def op_list(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    path = tmp_path / "ops.txt"
    monkeypatch.setenv(request.param, str(path))
    return path


def test_good_op_list_is_taken(op_list: Path) -> None:
    op_list.write_text("linear\nmatmul\n\n")
    check_op_lists()
    assert HPUPrecisionPlugin("bf16-mixed").precision == "bf16-mixed"


def test_missing_op_list_is_an_error(op_list: Path) -> None:
    with pytest.raises(ValueError, match=f"_OPS_LIST={op_list} cannot be read"):
        hpu_trainer(precision="bf16-mixed")


def test_unreadable_op_list_is_an_error(op_list: Path) -> None:
    op_list.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="cannot be read"):
        HPUPrecisionPlugin("bf16-mixed")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"linear\nmatmul \n", r"line 2: 'matmul ' has spaces around it"),
        (b"linear\r\nmatmul\r\n", r"line 1: 'linear\\r' ends in a carriage return"),
        (b"linear\nmatmull\n", r"line 2: 'matmull' is no operation.*did you mean 'matmul'"),
        (b"# comment\n", r"line 1: '# comment' is no operation"),
    ],
)
def test_line_that_autocast_would_pass_over_is_an_error(
    op_list: Path, content: bytes, message: str
) -> None:
    op_list.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        HPUPrecisionPlugin("bf16-mixed")


def test_op_lists_matter_to_bf16_mixed_only(op_list: Path) -> None:
    HPUPrecisionPlugin("32-true")
    HPUPrecisionPlugin("bf16-true")
    assert not op_list.exists()
