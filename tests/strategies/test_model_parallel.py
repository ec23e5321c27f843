"""`ModelParallelStrategy` beside its losses: evaluation, samplers, meta tensors, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi._core import vendor
from lightning_gaudi.distributed.device_mesh import check_eager
from tests.helpers.slow import SLOW
from tests.helpers.tiny import QUIET, TinyModule, hpu_trainer
from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import (
    Layout,
    Parallel,
    ValidatedParallel,
    parallelize,
)
from tests.strategies.sharded_cases import (
    CASES,
    NUM_BLOCKS,
    NUM_FEATURES,
    Batch,
    Block,
    Case,
    Stack,
    ValidatedStack,
    global_losses,
    loader,
)

LAYOUTS = {"fsdp2": Layout(2, 1), "tensors": Layout(1, 2)}
CLIPPED = CASES["sgd_accumulated_clipped_scheduled"]


def on_meta(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    with torch.device("meta"):
        blocks = [Block() for _ in range(NUM_BLOCKS)]
        return parallelize(nn.Sequential(*blocks, nn.Linear(NUM_FEATURES, 1)), mesh)


def drawn_apart(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Weights, and random numbers from here on, that no two ranks have alike."""
    torch.manual_seed(100 + torch.distributed.get_rank())
    blocks = [Block() for _ in range(NUM_BLOCKS)]
    return parallelize(nn.Sequential(*blocks, nn.Linear(NUM_FEATURES, 1)), mesh)


def without_the_head(net: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    for block in net[:-1]:
        fully_shard(block, mesh=mesh["data_parallel"])
    return net


class Whole(Callback):
    """The weights at the start of a training, put together."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        named = pl_module.net.named_parameters()
        self.devices = {str(weight.device) for _, weight in named}
        self.weights = {
            name: _whole(weight).detach().cpu() for name, weight in pl_module.net.named_parameters()
        }


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Dropping(Parallel):
    """With dropout on activations that all ranks have whole; targets are left out."""

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        dropped = nn.functional.dropout(self.net[:-1](batch[0]), 0.3)
        loss = self.net[-1](dropped).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss


class Manual(Stack):
    """Optimized by hand, with clipping."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")
        optimizer.step()
        optimizer.zero_grad()


class ManualParallel(Manual, Parallel): ...


def _evaluate(layout: Layout | None, rank: int) -> list[Any]:
    """Losses, and metrics of each kind of evaluation; DDP's without a layout."""
    model = ValidatedStack() if layout is None else ValidatedParallel(layout.how)
    data = 2 if layout is None else layout.data
    strategy = "ddp" if layout is None else ModelParallelStrategy(layout.data, layout.tensors)
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        max_epochs=1,
        val_check_interval=4,
        use_distributed_sampler=False,
        strategy=strategy,
        **QUIET,
    )
    data_rank = rank if data == 2 else 0

    def few() -> Any:
        return loader(data_rank, data, 2)

    trainer.fit(model, loader(data_rank, data), few())
    losses = [loss.item() for loss in model.losses]
    losses.append(trainer.validate(model, few(), verbose=False)[0]["val_loss"])
    losses.append(trainer.test(model, few(), verbose=False)[0]["test_loss"])
    predictions = trainer.predict(model, few())
    assert predictions is not None
    return [losses, torch.cat(predictions).flatten().tolist()]


class Noting(Parallel):
    """Notes which samples it got."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def predict_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        self.seen += batch[0][:, 0].int().tolist()
        return super().predict_step(batch, batch_idx)


def _sampled(layout: Layout) -> list[int]:
    """What Lightning's own sampler gives this rank."""
    model = Noting()
    features = torch.arange(8.0)[:, None].expand(8, NUM_FEATURES)
    strategy = ModelParallelStrategy(layout.data, layout.tensors)
    trainer = hpu_trainer(devices=2, strategy=strategy)
    trainer.predict(model, DataLoader(TensorDataset(features), batch_size=2))
    return model.seen


def _refused(run: Any) -> str:
    with pytest.raises((MisconfigurationException, ValueError)) as error:
        run()
    return str(error.value)


def _warnings(rank: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Layout(2, 1, without_the_head).fit(Case("adamw", {"max_steps": 1}))
    return [str(each.message) for each in caught if "data_parallel axis" in str(each.message)]


def _work(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {"evaluations": {"ddp": _evaluate(None, rank)}}
    for name, layout in LAYOUTS.items():
        found["evaluations"][name] = _evaluate(layout, rank)
        found["sampled", name] = _sampled(layout)
        whole = Whole()
        losses = Layout(layout.data, layout.tensors, on_meta).fit(CLIPPED, callbacks=[whole])[0]
        found["meta", name] = losses, whole.devices, whole.weights
        apart = Layout(layout.data, layout.tensors, drawn_apart)
        losses = apart.fit(CLIPPED, callbacks=[whole := Whole()])[0]
        found["apart", name] = losses, whole.devices, whole.weights
        found["manual", name] = layout.fit(Case("sgd"), kind=ManualParallel)[0]
    found["manual", "ddp"] = Case("sgd").fit(2, model=Manual("sgd"), strategy="ddp")[0]
    found["dropped"] = Layout(1, 2, drawn_apart).fit(CLIPPED, kind=Dropping)[0]
    plugin = MixedPrecision("bf16-mixed", device="hpu")
    found["plugin"] = LAYOUTS["tensors"].fit(CLIPPED, plugins=[plugin])[0]
    found["named"] = LAYOUTS["tensors"].fit(CLIPPED, precision="bf16-mixed")[0]
    found["unparallel"] = _refused(lambda: Layout(2, 1, lambda net, mesh: net).fit(Case("adamw")))
    found["drift"] = _warnings(rank)
    return found


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: Any) -> list[Any]:
    return run_trainers(_work, tmp_path_factory.mktemp("ranks"))


def test_evaluation_within_a_fit_and_after_it_is_that_of_ddp(ranks: list[Any]) -> None:
    for rank, found in enumerate(ranks):
        losses, predictions = found["evaluations"]["fsdp2"]
        expected, predicted = found["evaluations"]["ddp"]
        assert losses == pytest.approx(expected, abs=1e-6)
        assert predictions == pytest.approx(predicted, abs=1e-5)
        losses, predictions = found["evaluations"]["tensors"]
        both = torch.tensor([other["evaluations"]["ddp"][0] for other in ranks])
        assert losses == pytest.approx(both.mean(0).tolist(), abs=1e-6)
        assert predictions[rank::2] == pytest.approx(predicted, abs=1e-5)


def test_ranks_that_share_layers_get_the_same_samples(ranks: list[Any]) -> None:
    assert [found["sampled", "fsdp2"] for found in ranks] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [found["sampled", "tensors"] for found in ranks] == [list(range(8))] * 2


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("made", ["meta", "apart"])
def test_weights_made_on_meta_or_otherwise_on_each_rank_are_one_model(
    ranks: list[Any], made: str, name: str
) -> None:
    """All ranks have parts of the same random weights, and train as one process with these."""
    _, devices, weights = ranks[0][made, name]
    assert devices == {"hpu:0"}
    for key, weight in weights.items():
        assert torch.equal(weight, ranks[1][made, name][2][key]), key
    assert 0.05 < weights["0.up.weight"].std() < 0.25  # uniform up to 1/4
    reference = Stack("sgd")
    reference.net.load_state_dict(weights)
    expected = CLIPPED.fit(1, model=reference, accelerator="cpu", rank=0)[0]
    found = [rank[made, name][0] for rank in ranks]
    torch.testing.assert_close(global_losses(found), global_losses([expected]), rtol=0, atol=1e-6)


def test_ranks_that_share_layers_drop_the_same(ranks: list[Any]) -> None:
    assert ranks[0]["dropped"] == ranks[1]["dropped"]


def test_manual_optimization_clips_each_element(ranks: list[Any]) -> None:
    expected = global_losses([found["manual", "ddp"] for found in ranks])
    for name in LAYOUTS:
        found = global_losses([found["manual", name] for found in ranks])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, msg=name)


def test_users_precision_plugin_clips_and_computes_as_the_named_one(ranks: list[Any]) -> None:
    for found in ranks:
        assert found["plugin"] == found["named"]


def test_model_that_nothing_parallelizes_is_refused(ranks: list[Any]) -> None:
    for found in ranks:
        assert found["unparallel"].startswith(
            "Parallel.configure_model() has left all 20 weights whole, so each of 2 cards"
        )


def test_weights_that_no_rank_averages_are_named(ranks: list[Any]) -> None:
    """The ranks had warned: each would train a head of its own."""
    (message,) = ranks[0]["drift"]
    assert message.startswith("net.3.weight, net.3.bias are not spread over the 2 cards")
    assert ranks[1]["drift"] == []


def test_module_without_configure_model_is_refused() -> None:
    trainer = hpu_trainer(devices=1, max_epochs=1, strategy=ModelParallelStrategy())
    with pytest.raises(MisconfigurationException, match=r"parallelizes what TinyModule\.configure"):
        trainer.fit(TinyModule(), loader(0, 1))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 2), r"data_parallel_size=2, tensor_parallel_size=2\) needs 2 x 2 = 4 cards.* give 2"),
        (("auto", 1), r"data_parallel_size='auto', tensor_parallel_size=1\) needs 1 x 1 = 1 cards"),
    ],
)
def test_mesh_of_another_number_of_cards_is_refused(sizes: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(devices=2, strategy=ModelParallelStrategy(*sizes))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "all"])
def test_size_that_is_no_number_of_cards_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=rf"tensor_parallel_size={size!r}\) is no number of cards"):
        hpu_trainer(devices=2, strategy=ModelParallelStrategy(tensor_parallel_size=size))


def test_fsdp2_in_lazy_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "is_lazy", lambda: True)
    sharded = nn.Linear(1, 1)
    sharded.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})  # as fully_shard does
    with pytest.raises(MisconfigurationException, match=r"fully_shard works in .* eager mode only"):
        check_eager(sharded)
    check_eager(nn.Linear(1, 1))
