"""What models and Trainers do beside plain training, with FSDP on two cards."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import wrap

from lightning_gaudi import HPUFSDPPrecision
from lightning_gaudi.distributed.fsdp import was_sharded
from tests.helpers.rules import silent_rules
from tests.helpers.slow import SLOW
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies import ddp_cases
from tests.strategies.fsdp_cases import POLICY, ExactLoss, UserWrapped, UserWrappedLayers
from tests.strategies.sharded_cases import (
    CASES,
    NUM_FEATURES,
    Batch,
    Block,
    LateStack,
    Stack,
    ValidatedStack,
    global_losses,
    loader,
    make_net,
)

NUM_RANKS = 2
Found = dict[str, Any]


class Dropping(Stack):
    """With dropout in each block."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.net[:-1]:
            layer.up = nn.Sequential(layer.up, nn.Dropout(0.5))


class OnMeta(LateStack):
    """Its layers have no memory before they are in shards."""

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            with torch.device("meta"):
                self.net = make_net()


class ByHand(Stack):
    """Two optimizers, half of the model each, clipped and stepped by hand.

    Its gradients are large, so that clipping decides on the step, and unlike in size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        self.manual_backward(1e3 * super().training_step(batch, batch_idx))
        for optimizer in self.optimizers():
            self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        parts = (self.net[0], self.net[1:])
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in parts]


class ByHandLate(ByHand):
    def __init__(self) -> None:
        super().__init__()
        del self.net


class ByHandInParts(ByHandLate):
    """Each layer is a root of its own."""

    configure_model = UserWrappedLayers.configure_model


class ByHandInOne(ByHandLate):
    """There is one root."""

    configure_model = UserWrapped.configure_model


class Unseeded(Stack):
    """Each rank draws weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Block(), nn.Linear(NUM_FEATURES, 1))


class Unfinished(LateStack):
    """Forgets to wrap its last layer."""

    def configure_model(self) -> None:
        net = make_net()
        self.net = nn.Sequential(wrap(net[0]), net[1])


class OtherFamily(pytorch_lightning.LightningModule):
    """`Stack`, written for the other of Lightning's namespaces."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[1]).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _rank(rank: int) -> Found:
    """All that is looked at, on one of two ranks."""
    return {
        "fp32": _losses(ExactLoss, "hpu_ddp"),
        "dropped": {name: _dropped(name) for name in ("32-true", "bf16-mixed")},
        "by hand": [_losses(ByHand, "hpu_ddp")]
        + [_losses(model, "fsdp") for model in (ByHandInParts, ByHandInOne)],
        "float16": _losses(ExactLoss, "fsdp", plugins=[_half()]),
        "on meta": _losses(OnMeta, FSDPStrategy(auto_wrap_policy=POLICY)),
        "tied": _weights("tied"),
        "clipped_value": _weights("clipped_value"),
        "batch norm": _normalized_twice(rank, accelerator="hpu", devices=2, strategy="fsdp"),
        "copied": _copied(rank),
        "unseeded": _unseeded(rank),
        "validated": {name: _validated(rank, name) for name in ("hpu_ddp", "fsdp")},
        "runs": {name: _runs(rank, name) for name in ("hpu_ddp", "fsdp")},
        "other family": _other_family(rank),
        "errors": {
            "by hand": _error(ByHand, "fsdp"),
            "unfinished": _error(Unfinished, "fsdp"),
            "mesh of 3": _error(Stack, FSDPStrategy(device_mesh=(3,))),
            "mesh of cpus": _error(Stack, FSDPStrategy(device_mesh=init_device_mesh("cpu", (2,)))),
        },
    }


def _losses(model: type[Stack], strategy: Any, **settings: Any) -> list[float]:
    torch.manual_seed(5)
    case = CASES["adamw"]
    return case.fit(NUM_RANKS, model=model(), strategy=strategy, **settings)[0]


def _error(model: type[Stack], strategy: Any) -> str:
    with pytest.raises(MisconfigurationException) as error:
        _losses(model, strategy)
    return str(error.value)


def _dropped(precision: str) -> list[list[float]]:
    """Without and with activation checkpointing."""
    policies = ({}, {"activation_checkpointing_policy": POLICY})
    return [
        _losses(Dropping, FSDPStrategy(auto_wrap_policy=POLICY, **policy), precision=precision)
        for policy in policies
    ]


def _half() -> HPUFSDPPrecision:
    """Not the default scale of 2^16, too large for the first steps, which are left out then."""
    return HPUFSDPPrecision("16-mixed", ShardedGradScaler("hpu", init_scale=128.0))


def _weights(name: str) -> dict[str, Tensor]:
    _, trainer = ddp_cases.CASES[name].fit(NUM_RANKS, strategy="fsdp")
    return trainer.strategy.lightning_module_state_dict()


def _normalized_twice(rank: int, **settings: Any) -> dict[str, Tensor]:
    """The weights after two runs with synchronized statistics."""
    torch.manual_seed(ddp_cases.SEED)
    model, data = ddp_cases.Normalized("sgd"), ddp_cases.loader(rank, settings["devices"])
    for _ in range(2):
        trainer = pl.Trainer(
            **settings, **QUIET, max_epochs=1, sync_batchnorm=True, use_distributed_sampler=False
        )
        with silent_rules():  # a card has SyncBatchNorm in lazy mode alone
            trainer.fit(model, data)
    weights = trainer.strategy.lightning_module_state_dict()
    return {name: weight.cpu() for name, weight in weights.items()}


def _copied(rank: int) -> list[bool]:
    """Whether a model that was trained in shards can be copied, and is whole to FSDP then."""
    model = Stack()
    CASES["adamw"].fit(NUM_RANKS, model=model, strategy="fsdp")
    model.losses.clear()
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    return [was_sharded(model), *map(was_sharded, copies)]


def _unseeded(rank: int) -> Tensor:
    torch.manual_seed(rank)
    model = Unseeded()
    CASES["adamw"].fit(NUM_RANKS, model=model, strategy=FSDPStrategy(sharding_strategy="NO_SHARD"))
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).cpu()


def _validated(rank: int, strategy: str) -> list[float]:
    """In a fit, after it, and of the first weights."""
    model, data = ValidatedStack(), loader(rank, NUM_RANKS)
    settings = {"accelerator": "hpu", "devices": NUM_RANKS, "strategy": strategy, **QUIET}
    trainer = pl.Trainer(**settings, max_epochs=2, use_distributed_sampler=False)
    first = trainer.validate(model, data, verbose=False)[0]["val_loss"]
    trainer.fit(model, data, data)
    in_fit = trainer.callback_metrics["val_loss"].item()
    return [first, in_fit, trainer.validate(model, data, verbose=False)[0]["val_loss"]]


def _runs(rank: int, strategy: str) -> Found:
    """Train twice, with a test in between, each by another Trainer; then in another precision."""
    model, data = Stack(), loader(rank, NUM_RANKS)
    settings = {"accelerator": "hpu", "devices": NUM_RANKS, "strategy": strategy, **QUIET}
    settings |= {"max_epochs": 1, "use_distributed_sampler": False, "precision": "bf16-true"}
    pl.Trainer(**settings).fit(model, data)
    tested = pl.Trainer(**settings).test(model, data, verbose=False)[0]["test_loss"]
    pl.Trainer(**settings).fit(model, data)
    found = {"losses": [tested, *(loss.item() for loss in model.losses)]}
    if strategy == "fsdp":
        with pytest.raises(MisconfigurationException) as error:
            pl.Trainer(**{**settings, "precision": "32-true"}).fit(model, data)
        found["error"] = str(error.value)
    return found


def _other_family(rank: int) -> list[float]:
    strategy = pytorch_lightning.strategies.FSDPStrategy(auto_wrap_policy=POLICY)
    trainer = pytorch_lightning.Trainer(
        accelerator="hpu",
        devices=NUM_RANKS,
        strategy=strategy,
        max_epochs=1,
        use_distributed_sampler=False,
        **QUIET,
    )
    model = OtherFamily()
    trainer.fit(model, loader(rank, NUM_RANKS))
    return [loss.item() for loss in model.losses]


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return run_trainers(_rank, tmp_path_factory.mktemp("ranks"), num_ranks=NUM_RANKS)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_activation_checkpointing_repeats_dropout(ranks: list[Found], precision: str) -> None:
    for found in ranks:
        plain, checkpointed = found["dropped"][precision]
        assert plain == checkpointed
    assert ranks[0]["dropped"]["32-true"] != ranks[0]["dropped"]["bf16-mixed"]


@pytest.mark.parametrize("index", [1, 2], ids=["in_parts", "in_one"])
def test_clipping_is_by_the_norm_of_each_optimizers_gradients(
    ranks: list[Found], index: int
) -> None:
    expected, found = (global_losses([rank["by hand"][i] for rank in ranks]) for i in (0, index))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_float16_is_fp32_but_for_its_rounding(ranks: list[Found]) -> None:
    found, expected = (
        global_losses([rank[name] for rank in ranks]) for name in ("float16", "fp32")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-3)
    assert not torch.equal(found, expected)


def test_layers_without_memory_get_it_in_shards(ranks: list[Found]) -> None:
    losses = global_losses([rank["on meta"] for rank in ranks])
    assert losses.isfinite().all()
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("name", ["tied", "clipped_value"])
def test_weights_are_those_of_the_cpu_on_the_whole_batch(ranks: list[Found], name: str) -> None:
    expected = ddp_cases.CASES[name].fit(1, accelerator="cpu")[0].state_dict()
    for key, weight in expected.items():
        torch.testing.assert_close(ranks[0][name][key], weight, rtol=0, atol=1e-6, msg=key)


def test_batch_norms_stay_synchronized_in_a_second_run(ranks: list[Found]) -> None:
    expected = _normalized_twice(0, accelerator="cpu", devices=1)
    for key, weight in expected.items():
        torch.testing.assert_close(ranks[0]["batch norm"][key], weight, rtol=0, atol=1e-5, msg=key)


def test_a_copy_of_a_trained_model_does_not_hold_what_it_was_wrapped_in(ranks: list[Found]) -> None:
    assert [found["copied"] for found in ranks] == [[True, False, False]] * NUM_RANKS


def test_copies_start_as_rank_zero_does(ranks: list[Found]) -> None:
    assert torch.equal(ranks[0]["unseeded"], ranks[1]["unseeded"])


def test_validation_is_that_of_ddp(ranks: list[Found]) -> None:
    for found in ranks:
        first, in_fit, after = found["validated"]["fsdp"]
        assert [first, in_fit, after] == pytest.approx(found["validated"]["hpu_ddp"], abs=1e-6)
        assert after == in_fit < 0.5 * first


def test_model_goes_on_in_its_shards_in_other_trainers(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["runs"]["fsdp"]["losses"] == found["runs"]["hpu_ddp"]["losses"]


def test_model_in_shards_keeps_its_precision(ranks: list[Found]) -> None:
    message = ranks[0]["runs"]["fsdp"]["error"]
    assert "with precision='bf16-true' by an earlier run" in message
    assert "now has precision='32-true'. Pass the same" in message


def test_other_family_trains_alike(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["other family"] == pytest.approx(found["fp32"], abs=1e-6)


def test_stepping_by_hand_needs_layers_in_shards(ranks: list[Found]) -> None:
    message = ranks[0]["errors"]["by hand"]
    assert message.startswith("With automatic_optimization=False, backward runs in training_step")
    assert "configure_model" in message


def test_layer_left_out_is_named(ranks: list[Found]) -> None:
    message = ranks[0]["errors"]["unfinished"]
    assert "but not net.1.norm.weight, net.1.norm.bias, net.1.up.weight, net.1.up.bias" in message


def test_mesh_of_other_devices_is_refused(ranks: list[Found]) -> None:
    errors = ranks[0]["errors"]
    number = "device_mesh=(3,)) is of 3 cards, but devices and num_nodes ask for 2"
    assert number in errors["mesh of 3"]
    kind = "device_mesh=(2,), sharding_strategy='FULL_SHARD') is a mesh of 'cpu' devices"
    assert kind in errors["mesh of cpus"]
