"""Training compiled and as written: the same losses, fewer launches."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_gaudi._core import vendor
from lightning_gaudi.callbacks import Compile
from lightning_gaudi.compilation import model as compiled_model
from lightning_gaudi.compilation.method import is_compiled
from lightning_gaudi.compilation.model import CompiledRegions
from lightning_gaudi.compilation.settings import Choice, Compilation
from lightning_gaudi.fabric.strategies import SingleHPUStrategy as FabricStrategy
from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.tiny import batches, hpu_trainer

# An error in the middle of tracing would be one of the compiler's, which warns of its own doings.
pytestmark = pytest.mark.filterwarnings("default")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(pl.LightningModule):
    """Three blocks; keeps the losses, and the device's counts before each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.losses: list[Tensor] = []
        self.counts: list[dict[str, int]] = []
        self.compiled: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        names = ("launch", "graph_compilation", "host_sync")
        self.counts.append({name: vendor.metric(name)["TotalNumber"] for name in names})
        self.compiled.append(all(map(is_compiled, self.blocks)) and is_compiled(self.head))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self(batch[0]).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def count(self, name: str, step: int) -> int:
        return self.counts[step + 1][name] - self.counts[step][name]


def _fit(model: pl.LightningModule, compile: Any = None, **settings: Any) -> pl.Trainer:
    settings = {"max_epochs": 2, "num_sanity_val_steps": 0, **settings}
    trainer = hpu_trainer(strategy=SingleHPUStrategy(compile=compile), **settings)
    trainer.fit(model, batches(4), batches(2))
    return trainer


@pytest.fixture(scope="module")
def plain() -> Model:
    model = Model()
    _fit(model, "none")
    return model


@pytest.mark.slow_but("callback")
@pytest.mark.parametrize(
    "how", ["regions", "model", "callback", "environment", "default", {"regions": ["Block"]}]
)
def test_losses_are_those_of_the_model_as_written(
    how: Any, plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    keys = list(model.state_dict())
    if how in ("default", "environment"):
        monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
        if how == "environment":
            monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "regions")
        _fit(model)
    elif how == "callback":
        _fit(model, callbacks=[Compile()])
    else:
        _fit(model, how)
    torch.testing.assert_close(
        torch.stack(model.losses).cpu(), torch.stack(plain.losses).cpu(), rtol=1e-5, atol=0
    )
    assert list(model.state_dict()) == keys
    assert not {"forward", "training_step", "validation_step", "log"} & vars(model).keys()
    assert all(model.compiled) is (how != "model")
    assert not any(map(is_compiled, model.modules()))
    # Not one graph more in the second epoch, and no waiting for the device.
    assert model.count("graph_compilation", 4) + model.count("graph_compilation", 5) == 0
    assert model.count("host_sync", 5) == 0
    num_graphs = model.counts[-1]["graph_compilation"] - model.counts[0]["graph_compilation"]
    assert 2 <= num_graphs <= 8
    # Four regions forward and backward; loss, gradients' sums, and the optimizer's lists.
    assert model.count("launch", 5) <= 2 * 4 + 20
    assert plain.count("launch", 5) > 3 * model.count("launch", 5)


class Declaring(Model):
    """Names itself, and calls its blocks in validation without its `forward`."""

    compile_regions = ("Declaring",)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        for block in self.blocks:
            assert is_compiled(block)
        self.log("val_loss", self.head(self.blocks[0](batch[0])).square().mean())


@pytest.mark.slow
def test_a_model_names_its_regions_itself(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Declaring()
    monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
    _fit(model)
    torch.testing.assert_close(
        torch.stack(model.losses).cpu(), torch.stack(plain.losses).cpu(), rtol=1e-5, atol=0
    )
    # Forward, backward; what is called beside it in validation is compiled, and changes neither.
    assert model.counts[4]["graph_compilation"] - model.counts[0]["graph_compilation"] == 4
    assert model.count("graph_compilation", 4) + model.count("graph_compilation", 5) == 0
    assert model.count("launch", 5) <= 2 + 20
    assert not any(map(is_compiled, model.modules()))


@pytest.mark.parametrize("how", ["none", {"regions": ["Block"]}])
def test_who_chooses_comes_before_the_model(how: Any) -> None:
    class Choosing(Declaring):
        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            assert not is_compiled(self)
            assert is_compiled(self.blocks[0]) is (how != "none")

    _fit(Choosing(), how, max_steps=1)


@pytest.mark.parametrize("declared", ["Block", [Block], None])
def test_what_a_model_names_is_checked(declared: Any) -> None:
    model = Model()
    model.compile_regions = declared
    with pytest.raises(ValueError, match=r"Model\.compile_regions is .* a list of names"):
        _fit(model, "regions", max_steps=1)


class Beside(Model):
    """Has its loss in a method of its own, and names that."""

    compile_methods: Any = ("loss_of",)

    def loss_of(self, output: Tensor) -> Tensor:
        return (output * 2.0).square().mean() / 4.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.was_compiled = "loss_of" in vars(self)
        return self.loss_of(self(batch[0]))


def test_methods_that_a_model_names_are_compiled() -> None:
    """And are not, once the fit has ended; in a region they are part of its graph."""
    losses = {}
    for names in (("loss_of",), ()):
        model = Beside()
        model.__class__.compile_methods = names
        _fit(model, "regions", max_steps=3)
        assert model.was_compiled is bool(names)
        assert "loss_of" not in vars(model)
        losses[names] = torch.stack(model.losses).cpu(), model.count("launch", 1)
    (ours, few), (expected, many) = losses.values()
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert few < many


def test_names_of_methods_are_checked() -> None:
    class Wrong(Model):
        compile_methods = ("missing",)

    with pytest.raises(ValueError, match=r"Wrong\.compile_methods is \('missing',\), .* methods"):
        _fit(Wrong(), "regions", max_steps=1)


class Watched(Model):
    """Makes copies in the middle of training."""

    def on_train_batch_end(self, *args: Any) -> None:
        block = self.blocks[0]
        assert is_compiled(block)
        for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
            assert isinstance(other, Block)
            assert not is_compiled(other)
            x = torch.randn(2, 8)
            torch.testing.assert_close(other(x.to("hpu")), block(x.to("hpu")))
            assert other.forward.__self__ is other


def test_a_copy_of_a_compiled_module_is_not_compiled() -> None:
    _fit(Watched(), "regions", max_steps=1)


def test_a_checkpoint_resumes_either_way(tmp_path: Any, plain: Model) -> None:
    first, resumed = Model(), Model()
    trainer = _fit(first, "regions", max_epochs=1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    group = torch.load(tmp_path / "a.ckpt", weights_only=False)["optimizer_states"][0]
    assert group["param_groups"][0]["foreach"] is None
    trainer = hpu_trainer(
        strategy=SingleHPUStrategy(compile="none"), max_epochs=2, num_sanity_val_steps=0
    )
    trainer.fit(resumed, batches(4), batches(2), ckpt_path=tmp_path / "a.ckpt")
    losses = torch.stack([*first.losses, *resumed.losses]).cpu()
    torch.testing.assert_close(losses, torch.stack(plain.losses).cpu(), rtol=1e-5, atol=0)


class Branching(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if x.sum() > 0:
            x = x + 1
        return x


class Branches(Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Branching() for _ in range(2))


@pytest.mark.slow
def test_a_branch_on_values_is_told_once_with_its_line() -> None:
    with pytest.warns(UserWarning, match="cuts Branching") as caught:
        _fit(Branches(), "regions", max_epochs=1)
    (found,) = [str(each.message) for each in caught if "cuts" in str(each.message)]
    assert f"{__file__}:" in found
    assert "if x.sum() > 0:" in found
    assert "compile='none'" in found


def test_a_branch_on_values_can_be_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"one graph of Branching(.|\n)*compile='none'"):
        _fit(Branches(), Compilation(on_give_up="error"))


class Shapes(Model):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0][: batch_idx + 1]).square().mean()


@pytest.mark.slow
def test_too_many_shapes_are_told_with_the_limit() -> None:
    from torch._dynamo import config

    told = pytest.warns(UserWarning, match=r"has made 2 graphs of 'forward'.*recompile_limit")
    with config.patch(recompile_limit=1), told:
        _fit(Shapes(), {"recompile_limit": 2}, max_epochs=1, limit_val_batches=0)


class Penalty(Model):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].requires_grad_()
        loss = self(x).square().mean()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().sum()


def test_gradients_of_gradients_train_by_default_and_are_explained_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match=r"create_graph=True.*compile='none' in the strategy"):
        _fit(Penalty(), "regions")
    monkeypatch.delenv("LIGHTNING_GAUDI_COMPILE")
    with pytest.warns(UserWarning, match="Nothing is compiled: Penalty.training_step"):
        _fit(Penalty(), max_epochs=1)


def test_what_the_user_compiled_is_left_as_it_is() -> None:
    model = Model()
    model.blocks[1].compile(backend="eager")
    _fit(model, "regions", max_epochs=1)
    assert not any(model.compiled)


def test_who_trains_uncompiled_is_told_once_how_many_launches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        model = Model()
        _fit(model, "none")
    (found,) = [text for text in caplog.messages if "eager mode" in text]
    assert f"{model.count('launch', 2)} a step" in found
    assert "compile='regions'" in found


class Recurrent(pl.LightningModule):
    """Has no part to compile, until its last layers are a module."""

    def __init__(self, *, in_one: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        layers = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.in_one = in_one
        self.layers = nn.Sequential(*layers) if in_one else nn.ModuleList(layers)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.was_compiled = is_compiled(self.layers)
        x = self.rnn(batch[0][:, None])[0]
        for layer in [self.layers] if self.in_one else self.layers:
            x = layer(x)
        return x.square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_where_no_part_compiles_the_advice_is_none_that_is_followed_already() -> None:
    with pytest.warns(
        UserWarning, match=r"found no module of several .*\(it leaves LSTM alone\)"
    ) as told:
        _fit(Recurrent(in_one=False), "regions", max_epochs=1)
    (text,) = [str(each.message) for each in told if "launch of the device" in str(each.message)]
    assert "Pass compile=" not in text
    assert "nn.Sequential" in text
    with warnings.catch_warnings():  # what it says, done
        warnings.filterwarnings("error", message=".*launch of the device", category=UserWarning)
        model = Recurrent(in_one=True)
        _fit(model, "regions", max_epochs=1)
    assert model.was_compiled


def test_the_callback_says_that_it_has_no_effect_elsewhere() -> None:
    trainer = hpu_trainer(accelerator="cpu", callbacks=[Compile()], max_steps=1)
    with pytest.warns(UserWarning, match="this Trainer runs on 'cpu': it has no effect"):
        trainer.fit(Model(), batches(1))


@pytest.mark.parametrize("compile", ["regions", "model"])
def test_fabric_trains_alike(compile: str) -> None:
    found = []
    for choice in ("none", compile):
        fabric = Fabric(accelerator="hpu", devices=1, strategy=FabricStrategy(compile=choice))
        module = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
        torch.manual_seed(0)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.1)
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
        losses = []
        for (x,) in batches(3):
            loss = model(x.to("hpu")).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        found.append(torch.stack(losses).cpu())
        assert any(map(is_compiled, module.modules())) is (choice != "none")
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


def test_no_warning_is_left_for_a_model_that_compiles_as_a_whole() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*compile.*", category=UserWarning)
        _fit(Model(), {"on_give_up": "error"}, max_epochs=1)


class Nested(Block):
    """A block, and modules around what it computes, one of which may be called by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(super().forward(x))


class CallsParts(Model):
    """Calls a module in its block, as some do with the heads of libraries' models."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Nested() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.inner(x)
        return self.head(x)


@pytest.mark.slow
def test_a_module_in_a_region_is_compiled_where_it_is_called_by_itself() -> None:
    model, eager = CallsParts(), CallsParts()
    _fit(model, "regions")
    _fit(eager, "none")
    losses, expected = (torch.stack(each.losses).cpu() for each in (model, eager))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    # Two parts and a head, forward and backward; loss, gradients' sums, and the optimizer's lists.
    assert model.count("launch", 5) <= 2 * 3 + 20
    assert model.count("graph_compilation", 5) == 0
    assert not any(map(is_compiled, model.modules()))


def test_a_region_that_is_called_holds_the_modules_in_it() -> None:
    block = Nested().to("hpu")
    regions = CompiledRegions(
        nn.ModuleList([block, Nested().to("hpu")]), Compilation(), with_root=True
    )
    assert is_compiled(block.inner)
    block(torch.randn(2, 8, device="hpu"))
    assert is_compiled(block)
    assert not is_compiled(block.inner)
    regions.remove()
    assert "forward" not in vars(block) | vars(block.inner)


class Tied(Model):
    """Blocks that are computed again in backward, and two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].up.weight = self.blocks[2].up.weight
        self.head[2] = nn.Linear(8, 8)
        self.head[2].weight = self.head[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@pytest.mark.slow
def test_checkpointed_blocks_tied_weights_and_accumulation_lose_the_same() -> None:
    found = []
    for choice in ("none", "regions"):
        model = Tied()
        _fit(model, choice, accumulate_grad_batches=2, gradient_clip_val=0.5)
        found.append(torch.stack(model.losses).cpu())
        assert all(model.compiled) is (choice == "regions")
        assert not any(map(is_compiled, model.modules()))
        assert model.head[2].weight is model.head[0].weight
        assert model.blocks[0].up.weight is model.blocks[2].up.weight
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


def test_lazy_mode_says_that_it_compiles_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "is_lazy", lambda: True)
    monkeypatch.setattr(compiled_model, "_has_told_lazy", False)
    asked = Choice(Compilation(), "compile=")
    with pytest.warns(UserWarning, match=r"compile= asks for 'regions'.*lazy mode.*by itself"):
        assert not compiled_model.is_wanted(asked, Model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not compiled_model.is_wanted(asked, Model())  # once
        assert not compiled_model.is_wanted(Choice(Compilation(), None), Model())
