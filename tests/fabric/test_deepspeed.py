"""Fabric under DeepSpeed: what its loop may do, and what is refused rather than done wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DeepSpeedStrategy
from torch import nn

from lightning_gaudi._core import vendor
from lightning_gaudi.fabric import HPUDeepSpeedPrecision, HPUDeepSpeedStrategy
from tests.fabric.deepspeed_loop import adamw, cards, sgd, train
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import NUM_STEPS, loader, make_net

REFUSALS: dict[str, str] = {}
"""What is refused, and the message's pattern; see the functions below."""
_REFUSED: dict[str, Callable[[], Any]] = {}


def refused(said: str) -> Callable[[Callable[[], Any]], None]:
    def note(function: Callable[[], Any]) -> None:
        name = function.__name__.strip("_")
        REFUSALS[name], _REFUSED[name] = said, function

    return note


def _fabric(stage: int = 2, **config: Any) -> Fabric:
    zero = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    return cards(strategy=DeepSpeedStrategy(config=zero | config))


def _batches(fabric: Fabric) -> list[Any]:
    return [fabric.to_device(batch) for batch in loader(fabric.global_rank, 2)]


def _loss(net: nn.Module, batch: Any) -> torch.Tensor:
    features, targets = batch
    return (net(features) - targets).pow(2).mean()


@refused("a second backward before optimizer.step.*, of which ZeRO stage 1 keeps the last alone")
def _second_backward_in_stage_1() -> None:
    train(_fabric(1), accumulate=2, syncs_each=True)


@refused(r"of which ZeRO stage 2 keeps the last alone\. .*fabric\.no_backward_sync\(model\)")
def _second_backward_in_stage_2() -> None:
    train(_fabric(2), accumulate=2, syncs_each=True)


@refused("gradient_accumulation_steps=2, but Fabric.no_backward_sync.* accumulates, too")
def _accumulation_in_both() -> None:
    train(_fabric(gradient_accumulation_steps=2), accumulate=2)


@refused("gradient_accumulation_steps=2, but there was a second backward before optimizer.step")
def _steps_of_the_loop_under_deepspeeds_count() -> None:
    train(_fabric(3, gradient_accumulation_steps=2), accumulate=2, syncs_each=True)


@refused(r"optimizer\.step\(\) follows a backward in Fabric\.no_backward_sync\(\)")
def _step_with_gradients_of_one_rank() -> None:
    fabric = _fabric(1)
    net = make_net()
    net, optimizer = fabric.setup(net, adamw(net))
    with fabric.no_backward_sync(net):
        fabric.backward(_loss(net, _batches(fabric)[0]))
    optimizer.step()


@refused(r"Fabric\.clip_gradients\(max_norm=0\.3\) cannot be done .* 'gradient_clipping'")
def _clipping_by_norm() -> None:
    train(_fabric(), max_norm=0.3)


@refused(r"Fabric\.clip_gradients\(clip_val=0\.1\) cannot be done under DeepSpeed")
def _clipping_by_value() -> None:
    fabric = _fabric()
    net = make_net()
    net, optimizer = fabric.setup(net, adamw(net))
    fabric.clip_gradients(net, optimizer, clip_val=0.1)


@refused(r"Fabric\.setup\(\) got 2\. Put all parameters into groups of one")
def _two_optimizers() -> None:
    net = make_net()
    _fabric().setup(net, adamw(net[0]), sgd(net[1]))


@refused(r"names an optimizer, \{'type': 'AdamW'.*, but Fabric\.setup\(\) got a SGD")
def _optimizer_in_both() -> None:
    net = make_net()
    _fabric(optimizer={"type": "AdamW", "params": {"lr": 1e-2}}).setup(net, sgd(net))


@refused(r"bf16=\{'enabled': True\} in DeepSpeed's settings, but precision='32-true'")
def _precision_in_both() -> None:
    _fabric(bf16={"enabled": True})


def _evaluates(stage: int) -> float:
    """The loss of a model that was set up without an optimizer."""
    fabric = _fabric(stage)
    net = fabric.setup(make_net())
    net.eval()
    with torch.no_grad():
        return _loss(net, _batches(fabric)[0]).item()


def _with_configured_optimizer(stage: int) -> list[float]:
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.05}}}
    fabric = _fabric(stage, **config)
    net = fabric.setup(make_net())
    losses = []
    for batch in _batches(fabric):
        loss = _loss(net, batch)
        fabric.backward(loss)
        fabric.strategy.model.step()  # type: ignore[attr-defined]
        losses.append(loss.item())
    return losses


def _with_closures(stage: int) -> list[float]:
    fabric = _fabric(stage)
    net = make_net()
    net, optimizer = fabric.setup(net, sgd(net))
    losses = []
    for batch in _batches(fabric):

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(net, batch)
            fabric.backward(loss)
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def _with_two_models() -> list[float]:
    """Two are trained in turns, and neither hears of the other; the losses of the first."""
    fabric = _fabric(2)
    first, second = make_net(), make_net()
    first, step_first = fabric.setup(first, sgd(first))
    second, step_second = fabric.setup(second, adamw(second))
    losses = []
    for batch in _batches(fabric):
        loss, other = _loss(first, batch), _loss(second, batch)
        fabric.backward(loss, model=first)
        fabric.backward(other, model=second)
        step_first.step()
        step_second.step()
        losses.append(loss.item())
    return losses


def _counted() -> dict[str, Any]:
    """What DeepSpeed counts of a training, and how often our code waits for the device."""
    fabric = _fabric(2)
    train(fabric, accumulate=2)
    engine = fabric.strategy.model  # type: ignore[attr-defined]
    return {"steps": engine.global_steps, "clips": engine.gradient_clipping()}


def _syncs(is_bare: bool) -> int:
    """Of the second half of a training in stage 2, through Fabric or with DeepSpeed alone."""
    fabric = _fabric(2)
    net = make_net()
    wrapped, optimizer = fabric.setup(net, sgd(net))
    engine = fabric.strategy.model  # type: ignore[attr-defined]
    batches = _batches(fabric)
    before = 0
    for step, batch in enumerate(batches):
        if step == NUM_STEPS // 2:
            before = _num_syncs()
        loss = _loss(engine if is_bare else wrapped, batch)
        if is_bare:
            engine.backward(loss)
            engine.step()
        else:
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return _num_syncs() - before


def _num_syncs() -> int:
    stats = vendor.metric("host_sync")
    assert stats is not None
    return sum(value for value in stats.values() if isinstance(value, int))


def _refusal(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _rank(rank: int) -> dict[str, Any]:
    ddp = train(cards(strategy="ddp"), make_optimizer=sgd)
    return {
        "refusals": {name: _refusal(function) for name, function in _REFUSED.items()},
        "ddp": ddp,
        "evaluated": {stage: _evaluates(stage) for stage in (0, 2, 3)},
        "configured": {stage: _with_configured_optimizer(stage) for stage in (0, 2, 3)},
        "closures": {stage: _with_closures(stage) for stage in (0, 2, 3)},
        "two models": _with_two_models(),
        "counted": _counted(),
        "syncs": (_syncs(is_bare=True), _syncs(is_bare=False)),
        "named": train(cards(strategy="hpu_deepspeed"), make_optimizer=sgd),
    }


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: Any) -> list[dict[str, Any]]:
    return run_trainers(_rank, tmp_path_factory.mktemp("ranks"), timeout=240)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_would_go_wrong_is_refused_on_each_rank(ranks: Any, name: str) -> None:
    for rank in ranks:
        assert re.search(REFUSALS[name], rank["refusals"][name]), rank["refusals"][name]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_model_without_optimizer_is_evaluated(ranks: Any, stage: int) -> None:
    for rank in ranks:
        assert rank["evaluated"][stage] == pytest.approx(rank["ddp"][0], abs=1e-6)


@pytest.mark.parametrize("kind", ["configured", "closures"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_steps_are_those_of_ddp(ranks: Any, kind: str, stage: int) -> None:
    """By an optimizer that DeepSpeed's settings name, or with a closure."""
    for rank in ranks:
        assert rank[kind][stage] == pytest.approx(rank["ddp"], abs=1e-6)


def test_two_models_are_trained_apart(ranks: Any) -> None:
    for rank in ranks:
        assert rank["two models"] == pytest.approx(rank["ddp"], abs=1e-6)


def test_the_name_is_ours_and_lightnings_default(ranks: Any) -> None:
    for rank in ranks:
        assert rank["named"] == pytest.approx(rank["ddp"], abs=1e-6)


def test_deepspeed_counts_the_steps_and_clips_only_when_told(ranks: Any) -> None:
    """Its own default is to clip at a norm of 1."""
    for rank in ranks:
        assert rank["counted"] == {"steps": NUM_STEPS // 2, "clips": 0.0}


def test_fabric_waits_for_the_device_no_more_often_than_deepspeed(ranks: Any) -> None:
    for rank in ranks:
        bare, ours = rank["syncs"]
        assert ours <= bare


def test_fp16_is_refused_where_the_card_does_not_compute_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_gaudi.fabric.precision.deepspeed import check_precision

    monkeypatch.setattr(vendor, "is_fp16_supported", lambda: False)
    with pytest.raises(Exception, match=r"precision='16-true' .* Pass precision='bf16-true'"):
        check_precision(HPUDeepSpeedPrecision("16-true"))
    check_precision(HPUDeepSpeedPrecision("bf16-true"))
    monkeypatch.setattr(vendor, "is_fp16_supported", lambda: True)
    check_precision(HPUDeepSpeedPrecision("16-mixed"))


def test_another_precision_plugin_is_refused() -> None:
    from lightning.fabric.plugins import Precision

    from lightning_gaudi.fabric.precision.deepspeed import check_precision

    with pytest.raises(Exception, match=r"plugins=Precision\(\) would compute gradients without"):
        check_precision(Precision())


def test_an_unknown_setting_is_named() -> None:
    strategy = DeepSpeedStrategy(config={"zero_optimisation": {"stage": 2}})
    with pytest.raises(ValueError, match=r"'zero_optimisation'.* Did you mean 'zero_optimization'"):
        Fabric(accelerator="hpu", devices=2, strategy=strategy)


def test_settings_come_from_a_yaml_file(tmp_path: Path) -> None:
    path = tmp_path / "zero.yaml"
    path.write_text("zero_optimization: {stage: 3}\n")
    assert HPUDeepSpeedStrategy(config=path).zero_stage_3
