"""Fabric on one card, held to the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi.fabric import HPUPrecision
from tests.fabric.loop import NUM_FEATURES, loader, make_model, train
from tests.helpers.forked import fork_python


def one_card(**settings: Any) -> Fabric:
    return Fabric(**{"accelerator": "hpu", "devices": 1, **settings})


def on_cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"max_norm": 0.5}], ids=str)
def test_training_equals_the_cpu_bit_by_bit(settings: dict[str, Any]) -> None:
    ours, expected = make_model(), make_model()
    losses = train(one_card(), ours, **settings)
    train(on_cpu(), expected, **settings)
    assert {str(loss.device) for loss in losses} == {"hpu:0"}
    for name, weight in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name].cpu(), weight), name


def test_a_step_waits_for_nothing() -> None:
    fabric = one_card()
    train(fabric, num_steps=2)
    before = vendor.metric("host_sync")
    train(fabric, max_norm=0.5)
    assert vendor.metric("host_sync") == before


def test_launch_returns_what_the_function_does() -> None:
    assert one_card().launch(lambda fabric, value: (fabric.world_size, value), 7) == (1, 7)


def test_loss_backward_may_be_called_directly() -> None:
    fabric = one_card()
    model = fabric.setup(make_model())
    model(torch.ones(2, NUM_FEATURES, device=fabric.device)).sum().backward()
    assert model.module[0].weight.grad.device == fabric.device


class _Dtypes(nn.Module):
    """Notes the dtypes that a forward sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 16)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.layer(features)
        self.seen = {
            "input": features.dtype,
            "weight": self.layer.weight.dtype,
            "matmul": hidden.dtype,
            "exp": hidden.exp().dtype,
            "new": torch.zeros(1).dtype,
        }
        return hidden


def _seen(precision: str) -> dict[str, torch.dtype]:
    fabric = one_card(precision=precision)
    module = _Dtypes()
    wrapped = fabric.setup(module)
    output = wrapped(torch.ones(2, NUM_FEATURES, device=fabric.device))
    fabric.backward(output.sum())
    assert module.layer.weight.grad.dtype == module.layer.weight.dtype
    return module.seen | {"output": output.dtype}


def test_bf16_mixed_computes_in_the_vendors_dtypes_with_fp32_weights() -> None:
    seen = _seen("bf16-mixed")
    assert seen.pop("matmul") == torch.bfloat16
    assert set(seen.values()) == {torch.float32}


def test_bf16_true_holds_weights_and_inputs_in_bf16() -> None:
    seen = _seen("bf16-true")
    assert seen.pop("output") == torch.float32
    assert set(seen.values()) == {torch.bfloat16}


def test_32_true_computes_in_fp32() -> None:
    assert set(_seen("32-true").values()) == {torch.float32}


def test_autocast_context_covers_what_is_outside_of_the_module() -> None:
    fabric = one_card(precision="bf16-mixed")
    features = torch.ones(2, 2, device=fabric.device)
    with fabric.autocast():
        assert (features @ features).dtype == torch.bfloat16
    assert (features @ features).dtype == torch.float32


def test_bf16_training_is_the_cpus_but_for_its_rounding() -> None:
    start, ours, expected = make_model(), make_model(), make_model()
    train(one_card(precision="bf16-mixed"), ours)
    train(on_cpu(), expected)
    off, moved = (
        torch.cat(
            [(a.cpu() - b).flatten() for a, b in zip(x.parameters(), y.parameters(), strict=True)]
        )
        for x, y in ((ours, expected), (start, expected))
    )
    # A gradient has 8 bits, 0.4%; AdamW's first steps divide by it.
    assert 0 < off.norm() < 0.05 * moved.norm()


@pytest.mark.parametrize("precision", ["64-true", "transformer-engine-float16"])
def test_other_precisions_are_refused_with_what_hpu_supports(precision: Any) -> None:
    message = f"precision='{precision}'.*'32-true', 'bf16-mixed', 'bf16-true', '16-mixed'"
    with pytest.raises(MisconfigurationException, match=message):
        one_card(precision=precision)
    with pytest.raises(MisconfigurationException, match=message):
        HPUPrecision(precision)


@pytest.mark.parametrize("plugin", [MixedPrecision("bf16-mixed", "cuda"), DoublePrecision()])
def test_plugins_for_other_devices_are_refused(plugin: Any) -> None:
    message = rf"plugins={type(plugin).__name__}.*'bf16-mixed'"
    with pytest.raises(MisconfigurationException, match=message):
        one_card(plugins=[plugin])


@pytest.mark.parametrize(
    "plugin",
    [
        HalfPrecision("bf16-true"),
        HalfPrecision("16-true"),
        MixedPrecision("bf16-mixed", "hpu"),
        MixedPrecision("16-mixed", "hpu"),
    ],
)
def test_plugins_that_hold_on_hpu_are_taken(plugin: Any) -> None:
    assert one_card(plugins=[plugin]).strategy.precision is plugin


@pytest.mark.parametrize("looks", [False, True])
def test_clipping_is_by_the_vendors_kernels(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "_limits", {})
    fabric, model = one_card(), make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, NUM_FEATURES, device=fabric.device)).sum())
    expected = [p.grad.cpu().clone() for p in model.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    before = {name: vendor.metric(name)["TotalNumber"] for name in ("launch", "host_sync")}  # type: ignore[index]
    found = fabric.clip_gradients(model, optimizer, max_norm=0.1, error_if_nonfinite=looks)
    # The limit is filled, once for all steps, and a kernel clips; to look takes two, and a wait.
    num = {name: vendor.metric(name)["TotalNumber"] - before[name] for name in before}  # type: ignore[index]
    assert num == {"launch": 4 if looks else 2, "host_sync": int(looks)}
    torch.testing.assert_close(found.cpu(), norm)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient * (0.1 / (norm + 1e-6)))


def test_modules_and_tensors_are_made_on_the_card() -> None:
    fabric = one_card(precision="bf16-true")
    with fabric.init_module():
        weight = nn.Linear(2, 2).weight
    with fabric.init_tensor():
        tensor = torch.ones(1)
    for made in (weight, tensor):
        assert (made.device, made.dtype) == (fabric.device, torch.bfloat16)


def test_a_seed_before_fabric_holds_for_what_is_made_on_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = one_card()
    made = []
    for context in (fabric.init_module, fabric.init_tensor):
        fabric.seed_everything(5, verbose=False)
        with context():
            made.append(torch.rand(4))
        # As if the seed had come before the vendor's package, which then has not seen it.
        vendor.manual_seed(6)
        monkeypatch.setattr(vendor, "_seed_is_due", True)
        with context():
            made.append(torch.rand(4))
    assert made[0].device == fabric.device
    assert all(torch.equal(tensor, made[0]) for tensor in made)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


@pytest.fixture(params=[False, True], ids=["moved", "replaced"])
def _a_move_may_replace_parameters(request: pytest.FixtureRequest) -> Any:
    """Whether `Module.to` swaps a parameter's data, or makes another parameter."""
    previous = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(request.param)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(previous)


@pytest.mark.usefixtures("_a_move_may_replace_parameters")
def test_an_optimizer_made_before_the_move_trains_the_card_and_ties_stay() -> None:
    fabric = one_card()
    model = _Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, optimizer = fabric.setup(model, optimizer)
    assert model.head.weight is model.embedding.weight
    before = model.head.weight.detach().clone()
    fabric.backward(wrapped(torch.arange(4, device=fabric.device)).pow(2).sum())
    optimizer.step()
    assert model.head.weight.device == fabric.device
    assert not torch.equal(model.head.weight, before)
    (group,) = optimizer.param_groups
    assert [parameter is model.head.weight for parameter in group["params"]] == [True]


def test_a_checkpoint_is_the_users_state_and_loads_anywhere(tmp_path: Path) -> None:
    fabric = one_card()
    model, path = make_model(), tmp_path / "folder" / "state.ckpt"
    wrapped, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    fabric.backward(wrapped(torch.ones(2, NUM_FEATURES, device=fabric.device)).sum())
    optimizer.step()
    state = {"model": wrapped, "optimizer": optimizer, "step": 3, "more": {"x": [model[0].bias]}}
    fabric.save(path, state)
    saved = torch.load(path, weights_only=True)
    assert saved.keys() == state.keys()
    assert saved["model"]["0.weight"].device.type == saved["more"]["x"][0].device.type == "cpu"
    assert saved["optimizer"]["state"][0]["exp_avg"].device.type == "cpu"
    assert [file.name for file in path.parent.iterdir()] == ["state.ckpt"]

    other = make_model(seed=4)
    resumed, optimizer = fabric.setup(other, torch.optim.AdamW(other.parameters()))
    rest = fabric.load(path, {"model": resumed, "optimizer": optimizer})
    assert rest["step"] == 3
    for name, weight in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight)
    assert optimizer.state[other[0].weight]["exp_avg"].device == fabric.device
    fabric.save(
        tmp_path / "part.ckpt", {"model": other}, filter={"model": lambda key, _: "0" in key}
    )
    assert torch.load(tmp_path / "part.ckpt")["model"].keys() == {"0.weight", "0.bias"}


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint at .*nothing\.ckpt"):
        one_card().load(tmp_path / "nothing.ckpt")


def test_data_come_on_the_card() -> None:
    fabric = one_card()
    data, stays = loader(), loader()
    assert {batch[0].device.type for batch in fabric.setup_dataloaders(data)} == {"hpu"}
    kept = fabric.setup_dataloaders(stays, move_to_device=False)
    assert {batch[0].device.type for batch in kept} == {"cpu"}


def test_a_lazy_step_is_two_graphs() -> None:
    source = """
        from lightning.fabric import Fabric
        from lightning_gaudi import vendor
        from tests.fabric.loop import make_model, train
        launched = []
        mark_step = vendor.mark_step
        vendor.mark_step = lambda: (launched.append(1), mark_step())
        assert vendor.is_lazy()
        fabric = Fabric(accelerator="hpu", devices=1)
        train(fabric, num_steps=2)
        launched.clear()
        syncs = vendor.metric("host_sync")
        ours = make_model()
        train(fabric, ours, num_steps=10)
        assert vendor.metric("host_sync") == syncs, vendor.metric("host_sync")
        assert len(launched) == 20, launched
        compiled = vendor.metric("graph_compilation")["TotalNumber"]
        train(fabric, num_steps=10)
        assert vendor.metric("graph_compilation")["TotalNumber"] == compiled
        expected = make_model()
        train(Fabric(accelerator="cpu", devices=1), expected, num_steps=10)
        for name, weight in expected.state_dict().items():
            assert (ours.state_dict()[name].cpu() == weight).all(), name
        """
    fork_python(source, env={"PT_HPU_LAZY_MODE": "1"})
