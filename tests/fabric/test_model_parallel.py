"""Fabric with FSDP2, tensor parallelism and both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi.fabric import HPUModelParallelStrategy
from lightning_gaudi.simulator import collective_stats, reset_statistics
from tests.helpers.trainers import run_trainers
from tests.strategies.model_parallel_cases import offloaded, parallelize, with_large_batches
from tests.strategies.sharded_cases import (
    NUM_BLOCKS,
    NUM_FEATURES,
    NUM_STEPS,
    Block,
    global_losses,
    loader,
    make_net,
)

pytestmark = pytest.mark.slow

LAYOUTS = {2: {"fsdp2": (2, 1), "tensors": (1, 2)}, 4: {"both": (2, 2)}}


@dataclass(frozen=True)
class Loop:
    """A training loop as a user's script has it."""

    accumulate: int = 1
    max_norm: float | None = None
    precision: Any = "32-true"
    is_joint: bool = True
    """Whether the optimizer is made before the model is set up."""

    def train(self, fabric: Fabric, data: Any) -> dict[str, Any]:
        model: Any = make_net()
        optimizer: Any = None
        if self.is_joint:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            model, optimizer = fabric.setup(model, optimizer)
        else:
            model = fabric.setup_module(model)
            made = torch.optim.AdamW(model.parameters(), lr=1e-2)
            optimizer = fabric.setup_optimizers(made)
        losses, norms = [], []
        reset_statistics()
        for step, batch in enumerate(data):
            features, targets = fabric.to_device(batch)
            is_last = (step + 1) % self.accumulate == 0
            with fabric.no_backward_sync(model, enabled=not is_last):
                loss = nn.functional.mse_loss(model(features), targets)
                fabric.backward(loss / self.accumulate)
            losses.append(loss.detach())
            if is_last:
                if self.max_norm is not None:
                    norms.append(fabric.clip_gradients(model, optimizer, max_norm=self.max_norm))
                optimizer.step()
                optimizer.zero_grad()
        assert not any(isinstance(norm, DTensor) for norm in norms)
        return {
            "losses": [loss.item() for loss in losses],
            "norms": [norm.item() for norm in norms],
            "collectives": {kind: each["calls"] for kind, each in collective_stats().items()},
            "dtypes": {parameter.dtype for parameter in model.parameters()},
        }


LOOPS = {
    "joint": Loop(),
    "separate": Loop(is_joint=False),
    "accumulated_clipped": Loop(accumulate=2, max_norm=0.3),
    "bf16-mixed": Loop(precision="bf16-mixed"),
    "bf16-true": Loop(precision="bf16-true"),
}

ON_FOUR = ("joint", "accumulated_clipped")


def _fabric(num_ranks: int, strategy: Any, precision: Any = "32-true") -> Fabric:
    fabric = Fabric(accelerator="hpu", devices=num_ranks, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def _parallel(sizes: tuple[int, int], how: Any = parallelize, **settings: Any) -> Fabric:
    return _fabric(sizes[0] * sizes[1], ModelParallelStrategy(how, *sizes), **settings)


def _work(rank: int, num_ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in LOOPS if num_ranks == 2 else ON_FOUR:
        loop = LOOPS[name]
        with pytest.MonkeyPatch.context() as patch:
            if "bf16" in name:
                with_large_batches(patch)
            fabric = _fabric(num_ranks, "ddp", loop.precision)
            found[name, "ddp"] = loop.train(fabric, loader(rank, num_ranks))
            for layout, sizes in LAYOUTS[num_ranks].items():
                fabric = _parallel(sizes, precision=loop.precision)
                found[name, layout] = loop.train(fabric, loader(rank // sizes[1], sizes[0]))
    if num_ranks == 2:
        found["offloaded"] = Loop(max_norm=0.3).train(_parallel((2, 1), offloaded), loader(rank, 2))
        found["ddp"] = Loop(max_norm=0.3).train(_fabric(2, "ddp"), loader(rank, 2))
        found["sampled"] = {
            name: _sampled(_parallel(sizes)) for name, sizes in LAYOUTS[num_ranks].items()
        }
        found["meta"] = _meta(_parallel((2, 1)))
        found["refused"] = _refusals()
    return found


def _sampled(fabric: Fabric) -> list[int]:
    data = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(8))))
    return [int(index) for (batch,) in data for index in batch]


def _meta(fabric: Fabric) -> dict[str, Any]:
    with fabric.init_module(empty_init=True):
        net = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)), nn.Linear(NUM_FEATURES, 1))
    was_meta = all(parameter.is_meta for parameter in net.parameters())
    model = fabric.setup_module(net)
    weights = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    return {"was_meta": was_meta, "weights": weights, "device": str(model.device)}


def renamed(net: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    return parallelize(nn.Sequential(*map(checkpoint_wrapper, net)), mesh)


def _refusals() -> dict[str, str]:
    def used(fabric: Fabric) -> None:
        net = make_net()
        optimizer = torch.optim.AdamW(net.parameters())
        net(torch.zeros(1, NUM_FEATURES)).sum().backward()
        optimizer.step()
        fabric.setup(net, optimizer)

    def joint(fabric: Fabric) -> None:
        net = make_net()
        fabric.setup(net, torch.optim.AdamW(net.parameters()))

    cases = {
        "renamed": (renamed, joint),
        "used": (parallelize, used),
        "whole": (lambda net, mesh: net, joint),
    }
    found = {}
    for name, (how, run) in cases.items():
        with pytest.raises((MisconfigurationException, ValueError)) as error:
            run(_parallel((2, 1), how))
        found[name] = str(error.value)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: Any) -> list[Any]:
    return run_trainers(_work, tmp_path_factory.mktemp("ranks"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: Any) -> list[Any]:
    return run_trainers(_work, tmp_path_factory.mktemp("ranks"), 4, num_ranks=4)


@pytest.fixture(params=["two", "four"])
def ranks(request: pytest.FixtureRequest) -> list[Any]:
    found: list[Any] = request.getfixturevalue(request.param)
    return found


def _losses(ranks: list[Any], *key: str) -> Tensor:
    return global_losses([found[key]["losses"] for found in ranks])


def test_losses_are_those_of_ddp(ranks: list[Any]) -> None:
    for name in LOOPS if len(ranks) == 2 else ON_FOUR:
        tolerance = 3e-3 if "bf16" in name else 1e-6
        for layout in LAYOUTS[len(ranks)]:
            found, expected = _losses(ranks, name, layout), _losses(ranks, name, "ddp")
            torch.testing.assert_close(
                found, expected, rtol=0, atol=tolerance, msg=f"{name}, {layout}"
            )


def test_bf16_mixed_holds_fp32_and_bf16_true_holds_bf16(two: list[Any]) -> None:
    for layout in LAYOUTS[2]:
        assert two[0]["bf16-mixed", layout]["dtypes"] == {torch.float32}
        assert two[0]["bf16-true", layout]["dtypes"] == {torch.bfloat16}


def test_norms_are_those_of_ddp_on_all_ranks(ranks: list[Any]) -> None:
    expected = ranks[0]["accumulated_clipped", "ddp"]["norms"]
    for found in ranks:
        for layout in LAYOUTS[len(ranks)]:
            norms = found["accumulated_clipped", layout]["norms"]
            assert norms == pytest.approx(expected, rel=1e-5)


def test_gradients_are_scattered_once_in_each_window(two: list[Any]) -> None:
    """By `no_backward_sync`; the blocks and the root are one each."""
    for found in two:
        every = found["joint", "fsdp2"]["collectives"]["reduce_scatter"]
        once = found["accumulated_clipped", "fsdp2"]["collectives"]["reduce_scatter"]
        assert (every, once) == (NUM_STEPS * (NUM_BLOCKS + 1), NUM_STEPS // 2 * (NUM_BLOCKS + 1))


def test_offloaded_shards_train_as_ddp_does(two: list[Any]) -> None:
    found, expected = (
        global_losses([rank[key]["losses"] for rank in two]) for key in ("offloaded", "ddp")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_ranks_that_share_layers_get_the_same_samples(two: list[Any]) -> None:
    assert [found["sampled"]["fsdp2"] for found in two] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [found["sampled"]["tensors"] for found in two] == [list(range(8))] * 2


def test_empty_weights_are_made_on_the_cards_in_shards(two: list[Any]) -> None:
    first, second = (found["meta"] for found in two)
    assert first["was_meta"]
    assert first["device"] == "hpu:0"
    for weight, other in zip(first["weights"], second["weights"], strict=True):
        assert torch.equal(weight, other)
    assert 0.05 < first["weights"][2].std() < 0.25  # uniform up to 1/4


def test_optimizers_that_cannot_train_the_shards_are_refused(two: list[Any]) -> None:
    """Lightning goes on with them, and trains nothing."""
    for found in two:
        refused = found["refused"]
        assert "made for the model's '0.norm.weight', which parallelize_fn" in refused["renamed"]
        assert "states for whole weights" in refused["used"]
        assert refused["whole"].startswith("parallelize_fn has left all 20 weights whole")


def test_it_has_no_name() -> None:
    """By a name it would have no `parallelize_fn`."""
    with pytest.raises(MisconfigurationException, match="'hpu_model_parallel' is unknown"):
        Fabric(accelerator="hpu", devices=2, strategy="hpu_model_parallel")


def test_mesh_of_another_number_of_cards_is_refused() -> None:
    strategy = ModelParallelStrategy(parallelize, data_parallel_size=3)
    with pytest.raises(MisconfigurationException, match=r"needs 3 x 2 = 6 cards.* give 2"):
        Fabric(accelerator="hpu", devices=2, strategy=strategy)
    assert isinstance(strategy, HPUModelParallelStrategy)
