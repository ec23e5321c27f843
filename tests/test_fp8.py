"""Training in fp8 on one card: what is computed in it, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from lightning_gaudi import vendor
from lightning_gaudi._core.precision.fp8 import find_linears
from lightning_gaudi.callbacks import FlopCounter
from lightning_gaudi.precision import HPUFP8Precision, HPUPrecisionPlugin
from tests.fp8_cases import Model, Validated, fit, loader, losses_of, scales_of

IN_FP8 = {"embed", *(f"blocks.{i}.{name}" for i in range(2) for name in ("up", "down"))}


def test_fp8_and_transformer_engine_mean_the_same_and_stay_near_bf16() -> None:
    losses = {}
    for precision in ("fp8", "transformer-engine", "bf16-mixed"):
        model = Model()
        trainer = fit(model, 8, precision=precision)
        losses[precision] = losses_of(model)
        if precision != "bf16-mixed":
            assert type(trainer.precision_plugin) is HPUFP8Precision
            assert set(scales_of(trainer)) == IN_FP8
    torch.testing.assert_close(losses["fp8"], losses["transformer-engine"], rtol=0, atol=0)
    assert not torch.equal(losses["fp8"], losses["bf16-mixed"])
    torch.testing.assert_close(losses["fp8"], losses["bf16-mixed"], rtol=0, atol=0.05)


def test_layers_keep_their_parameters_and_compute_in_fp8() -> None:
    model = Model()
    before = {name: type(module) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    seen = []
    model.blocks[0].up.register_forward_hook(
        lambda module, args, output: seen.append((module.weight is weight, output.dtype))
    )
    weight = model.blocks[0].up.weight
    with torch.hpu.metric_localcontext("launch") as launches:
        fit(model, 3)
    assert launches is not None
    assert seen == [(True, torch.bfloat16)] * 3
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert list(model.state_dict()) == keys
    # As it was written again, and on the CPU.
    assert "forward" not in vars(model.blocks[0].up)
    assert model.blocks[0].up(torch.ones(2, 16)).dtype == torch.float32


@pytest.mark.parametrize("recipe", [None, {"interval": 3, "amax_history_len": 2}])
def test_an_evaluation_changes_nothing_of_the_training(recipe: Any) -> None:
    """Neither the sanity check before there are scales, nor one after each step."""
    plain, validated = Model(), Validated()
    states = [
        scales_of(
            fit(
                model,
                plugins=HPUFP8Precision(recipe=recipe),
                num_sanity_val_steps=2,
                val_check_interval=1,
            )
        )
        for model in (plain, validated)
    ]
    assert len(validated.validated) > 6
    assert torch.equal(losses_of(plain), losses_of(validated))
    assert states[0] == states[1]
    # What is validated is near what bf16 has, also before the first step.
    exact = Validated()
    fit(exact, precision="bf16-mixed", num_sanity_val_steps=2, val_check_interval=1)
    found, expected = (torch.stack(each.validated).cpu() for each in (validated, exact))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("recipe", [None, {"interval": 2}])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations_change_no_number(reentrant: bool, recipe: Any) -> None:
    found = []
    for how in (None, reentrant):
        model = Model(how)
        trainer = fit(model, plugins=HPUFP8Precision(recipe=recipe), accumulate_grad_batches=2)
        found.append((losses_of(model), scales_of(trainer)))
    (losses, scales), (expected, expected_scales) = found
    assert torch.equal(losses, expected)
    assert scales == expected_scales


def test_a_checkpoint_goes_to_bf16_to_the_cpu_and_back_and_resumes_to_the_bit(
    tmp_path: Path,
) -> None:
    """Gradients are rounded at random, as HYBRID has it: the card's random state counts, too."""
    whole, resumed = Model(), Model()
    scales = scales_of(fit(whole, 6, num_batches=3))
    fit(Model(), 3, num_batches=3).save_checkpoint(tmp_path / "fp8")
    assert scales_of(fit(resumed, 6, tmp_path / "fp8", num_batches=3)) == scales
    assert torch.equal(losses_of(resumed), losses_of(whole)[3:])
    on_cpu = {"accelerator": "cpu", "precision": "32-true"}

    def go_on(name: str, num_steps: int, **settings: Any) -> tuple[torch.Tensor, Any]:
        model = Model()
        trainer = fit(model, num_steps, tmp_path / name, num_batches=3, **settings)
        return losses_of(model), trainer

    losses, trainer = go_on("fp8", 6, precision="bf16-mixed")
    trainer.save_checkpoint(tmp_path / "bf16")
    torch.testing.assert_close(losses, losses_of(whole)[3:], rtol=0, atol=0.02)
    losses, _ = go_on("fp8", 6, **on_cpu)
    torch.testing.assert_close(losses[0], losses_of(whole)[3], rtol=0, atol=0.02)
    go_on("bf16", 9, **on_cpu)[1].save_checkpoint(tmp_path / "cpu")
    (losses, _), (expected, _) = (
        go_on("cpu", 12, precision=each) for each in ("fp8", "bf16-mixed")
    )
    torch.testing.assert_close(losses, expected, rtol=0, atol=0.02)
    # And as weights alone, without a word of fp8.
    Model().load_state_dict(torch.load(tmp_path / "fp8", weights_only=True)["state_dict"])


def test_scales_are_kept_from_one_run_to_the_next() -> None:
    model = Validated()
    trainer = fit(model)
    scales = scales_of(trainer)
    trainer.validate(model, verbose=False)
    assert scales_of(trainer) == scales


def test_a_step_in_fp8_waits_for_nothing() -> None:
    waits = []

    class Watched(Model):
        def on_train_batch_end(self, *args: Any) -> None:
            waits.append(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]

    fit(Watched(), 6, log_every_n_steps=100)
    assert waits[-1] == waits[1]


class _Odd(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 4)
        self.q_proj = nn.Linear(4, 4)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2)})
        self.odd, self.tied, self.score = _Odd(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.words.weight
        self.classifier = nn.Sequential(nn.Linear(4, 4))

    def get_output_embeddings(self) -> nn.Module:
        return self.score


def test_what_the_first_step_measures_keeps_no_outputs() -> None:
    width, rows, num_layers = 256, 2048, 6
    fabric = Fabric(accelerator="hpu", devices=1, precision="fp8")
    model = fabric.setup(nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers))))
    batch = torch.randn(rows, width, device="hpu", requires_grad=True)
    before = torch.hpu.memory_stats()["InUse"]
    loss = model(batch).sum()
    kept = (torch.hpu.memory_stats()["InUse"] - before) / (rows * width * num_layers)
    # For each layer its input in bf16, and in fp8 for its backward; weights are a tenth of that.
    assert 2 < kept < 4
    fabric.backward(loss)


def test_heads_adapters_and_what_is_named_are_left_out() -> None:
    model = _Transformer()
    assert set(find_linears(model)) == {"q_proj", "classifier.0"}
    assert set(find_linears(model, ["classifier"])) == {"q_proj"}
    with pytest.raises(ValueError, match=r"skip has 'clasifier'.*Did you mean 'classifier'\?"):
        find_linears(model, ["clasifier"])
    with pytest.raises(ValueError, match=r"_Transformer has none .*: q_proj, .* and 2 more"):
        find_linears(model, ["classifier", "q_proj"])
    with pytest.raises(ValueError, match=r"ReLU has none .* \(left out: none\)"):
        find_linears(nn.ReLU())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": {"fp8_fromat": "E5M2"}}, r"'fp8_fromat'.*Did you mean 'fp8_format'\?"),
        ({"recipe": {"fp8_format": "E4M3"}}, r"fp8_format='E4M3'. Pass 'HYBRID' or 'E5M2'"),
        ({"recipe": {"interval": 0}}, "interval=0. Pass a number of steps, 1 or more"),
        ({"recipe": {"reduce_amax": "no"}}, "reduce_amax='no'. Pass true or false"),
        ({"skip": "lm_head"}, r"skip='lm_head' is no list. Pass \['lm_head'\]"),
        ({"precision": "16-mixed"}, r"precision='16-mixed'\) is no precision .*beside fp8"),
    ],
)
def test_settings_that_are_not_known_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, MisconfigurationException), match=message):
        HPUFP8Precision(**settings)


def test_the_recipe_reaches_the_engine() -> None:
    recipe = {"fp8_format": "E5M2", "interval": 2, "margin": 1, "reduce_amax": False}
    trainer = fit(Model(), 2, plugins=HPUFP8Precision(recipe=recipe, skip=["embed"]))
    (layers,) = trainer.precision_plugin._layers
    assert set(layers.forwards) == IN_FP8 - {"embed"}
    found = layers.forwards["blocks.0.up"].engine.fp8_meta["recipe"]
    assert (found.fp8_format.name, found.interval, found.margin) == ("E5M2", 2, 1)
    assert not found.reduce_amax


def test_fp8_is_for_an_hpu() -> None:
    with pytest.raises(ValueError, match=r"precision='fp8' .*accelerator='cpu' is none"):
        fit(Model(), accelerator="cpu")
    with pytest.raises(ValueError, match=r"precision='fp8' .*accelerator='cpu' is none"):
        Fabric(accelerator="cpu", devices=1, precision="fp8")


def test_fp8_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_gaudi.hardware import GAUDIS

    def missing() -> Any:
        raise ImportError("No module named 'intel_transformer_engine'")

    monkeypatch.setattr(vendor, "generation", lambda: GAUDIS["gaudi1"])
    with pytest.raises(MisconfigurationException, match=r"this card is a Gaudi 1\. Pass"):
        fit(Model())
    monkeypatch.undo()
    monkeypatch.setattr(vendor, "transformer_engine", missing)
    with pytest.raises(MisconfigurationException, match="this release of its software lacks"):
        fit(Model())


def test_fabric_trains_in_fp8_as_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PT_TE_FORCE_SR_BWD", "0")
    model = Model()
    fit(model)
    fabric = Fabric(accelerator="hpu", devices=1, precision="fp8")
    ours = Model(reentrant=False)
    module, optimizer = fabric.setup(ours, ours.configure_optimizers())
    losses = []
    for batch in list(loader())[:6]:
        loss = _loss(module, batch)
        losses.append(loss.detach())
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    assert torch.equal(torch.stack(losses).cpu(), losses_of(model))
    state = fabric.strategy.precision.state_dict()
    again = Fabric(accelerator="hpu", devices=1, precision="fp8")
    again.strategy.precision.load_state_dict(state)
    again.setup(Model())
    found = again.strategy.precision.state_dict()["fp8"]["0"]
    assert all(torch.equal(found[name], state["fp8"]["0"][name]) for name in IN_FP8)
    with pytest.raises(RuntimeError, match=r"requires you to call `fabric.backward"):
        _loss(module, next(iter(loader()))).backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_past_the_plugin_does_not_compute_in_bf16_silently(reentrant: bool) -> None:
    plugin = HPUFP8Precision()
    model = plugin.convert_module(Model(reentrant).to("hpu"))
    points = torch.ones(4, 16, device="hpu", requires_grad=True)
    with plugin.forward_context():
        output = model(points)
    with pytest.raises(RuntimeError, match=r"outside of fp8.* self.manual_backward"):
        output.sum().backward()


def _loss(module: Any, batch: Any) -> torch.Tensor:
    points, classes = (each.to("hpu") for each in batch)
    return nn.functional.cross_entropy(module(points), classes)


def test_a_command_line_takes_fp8() -> None:
    """Of the Trainer's own arguments, whose types say which precisions there are."""
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(pl.Trainer, "trainer")
    given = ["--trainer.accelerator=hpu", "--trainer.devices=1", "--trainer.precision=fp8"]
    assert parser.parse_args(given).trainer.precision == "fp8"


def test_products_in_fp8_count_as_those_in_bf16() -> None:
    counts = []
    for plugin in (HPUFP8Precision(), HPUPrecisionPlugin("bf16-mixed")):
        model = plugin.convert_module(Model().to("hpu"))
        for _ in range(2):  # the first step is in bf16
            counter = FlopCounter()
            with counter, plugin.forward_context():
                model(torch.ones(4, 16, device="hpu")).float().sum().backward()
        counts.append(counter.num_flops)
    assert counts[0] == counts[1] > 0
