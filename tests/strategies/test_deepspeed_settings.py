"""What DeepSpeed's settings do in a Trainer: optimizers, schedules, checkpointing, precisions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision.deepspeed import DeepSpeedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gaudi import HPUDeepSpeedStrategy, HPUPrecisionPlugin
from lightning_gaudi._core import vendor
from tests.helpers.slow import SLOW
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import CASES, LateStack, Stack, ValidatedStack, loader

CASE = CASES["adamw"]
STAGES = (0, 3)
MANUAL_STAGES = (1, 2)
REUSED = (0, 2, 3, "late")
EVALUATED = ("stage 3", "late")
ADAMW = {"lr": 1e-2, "weight_decay": 1e-2}
SCHEDULE = {
    "warmup_min_lr": 0.0, "warmup_max_lr": 1e-2, "warmup_num_steps": 3, "warmup_type": "linear",
}  # fmt: skip
CHECKPOINTING = {
    "partition_activations": False,
    "cpu_checkpointing": False,
    "contiguous_memory_optimization": False,
    "number_checkpoints": 3,
    "synchronize_checkpoint_boundary": True,
    "profile": False,
}


def _config(stage: int, **settings: Any) -> dict[str, Any]:
    return {
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        **settings,
    }


def _optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": {**ADAMW, **params}}}


class UntrainedStack(Stack):
    """Without an optimizer, which Lightning allows."""

    def configure_optimizers(self) -> Any:
        return None


class FusedStack(Stack):
    """With the vendor's optimizer."""

    def configure_optimizers(self) -> Any:
        return vendor.fused_adamw()(self.parameters(), **ADAMW)


class ScheduledStack(Stack):
    """With one of DeepSpeed's schedules, and torch's optimizer."""

    def configure_optimizers(self) -> Any:
        from deepspeed.runtime.lr_schedules import WarmupDecayLR

        optimizer = torch.optim.AdamW(self.parameters(), **ADAMW)
        schedule = WarmupDecayLR(optimizer, total_num_steps=10, **SCHEDULE)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        # Lightning wants it of a schedule that is not torch's.
        scheduler.step()


class LoadingStack(Stack):
    """With its own data, whose loader knows no size of batches."""

    num_loaders = 0

    def train_dataloader(self) -> Any:
        self.num_loaders += 1
        return DataLoader([[*batch] for batch in loader(0, 1, 2)], batch_size=None)


class ManualStack(Stack):
    """That steps by itself, after every other batch."""

    def __init__(self, clip_val: float | None = None) -> None:
        super().__init__("sgd")
        self.automatic_optimization = False
        self.clip_val = clip_val

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx) / 2)
        if batch_idx % 2:
            optimizer = self.optimizers()
            if self.clip_val is not None:
                self.clip_gradients(optimizer, self.clip_val, "norm")
            optimizer.step()
            optimizer.zero_grad()


class CheckpointedStack(Stack):
    """Whose blocks keep no activations."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        from deepspeed.runtime.activation_checkpointing import checkpointing

        self.seen = (checkpointing.num_layers, checkpointing.SYNCHRONIZE)
        self.variables = {name: os.environ.get(name) for name in VARIABLES}
        hidden = batch[0].requires_grad_()
        for layer in self.net:
            hidden = checkpointing.checkpoint(layer, hidden)
        loss = (hidden.float() - batch[1].float()).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss


VARIABLES = ("PT_HPU_LAZY_ACC_PAR_MODE", "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES")


def _train(rank: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {"ddp": _fit(strategy="ddp")}
    found["ddp, fused"] = _fit(FusedStack(), strategy="ddp")
    found["ddp, scheduled"] = _fit(ScheduledStack(), strategy="ddp")
    for stage in STAGES:
        for name, model, settings in _cases():
            strategy = HPUDeepSpeedStrategy(config=_config(stage, **settings))
            found[name, stage] = _fit(model, strategy=strategy)
        found["fp16", stage] = _fit(strategy=DeepSpeedStrategy(stage=stage), precision="16-mixed")
    for name in ("ddp", *MANUAL_STAGES):
        strategy = "ddp" if name == "ddp" else DeepSpeedStrategy(stage=name)
        found["manual", name] = _fit(ManualStack(), strategy=strategy)
    found["loaders"] = _loaders()
    found["checkpointed"] = _checkpointed()
    found["evaluated"] = _evaluated()
    found["reused"] = _reused()
    found["errors"] = {name: _error(make) for name, make in ERRORS.items()}
    return found


def _cases() -> list[tuple[str, Stack, dict[str, Any]]]:
    schedule = {"type": "WarmupDecayLR", "params": {**SCHEDULE, "total_num_steps": "auto"}}
    return [
        ("torch", Stack(), _optimizer("AdamW", torch_adam=True)),
        ("deepspeed", Stack(), _optimizer("AdamW")),
        ("vendor", Stack(), _optimizer("FusedAdamW")),
        ("fused", FusedStack(), {}),
        ("scheduled", Stack(), {**_optimizer("AdamW", torch_adam=True), "scheduler": schedule}),
        ("user's schedule", ScheduledStack(), {}),
    ]


def _fit(model: Stack | None = None, **settings: Any) -> list[float]:
    return CASE.fit(2, model=model, **settings)[0]


def _loaders() -> list[int]:
    """How often a test, and a fit, make a loader for training."""
    counts = []
    for run in ("test", "fit"):
        model = LoadingStack()
        trainer = _trainer("deepspeed_stage_2", max_epochs=1)
        if run == "fit":
            trainer.fit(model)
        else:
            trainer.test(model, loader(0, 1, 2), verbose=False)
        counts.append(model.num_loaders)
    return counts


def _checkpointed() -> dict[str, Any]:
    model = CheckpointedStack()
    config = _config(2, activation_checkpointing=CHECKPOINTING)
    losses = _fit(model, strategy=DeepSpeedStrategy(config=config))
    after = {name: os.environ.get(name) for name in VARIABLES}
    return {
        "losses": losses,
        "seen": model.seen,
        "variables": model.variables,
        "after": after,
    }


def _reused() -> dict[Any, list[float]]:
    """One model that is fitted twice and evaluated between: losses of all of it."""
    found: dict[Any, list[float]] = {}
    case = CASES["sgd_accumulated_clipped_scheduled"]
    for name in ("ddp", *REUSED):
        model = LateStack("sgd") if name == "late" else ValidatedStack("sgd")
        losses = []
        for run in ("fit", "test", "fit"):
            stage = 3 if name == "late" else name
            strategy = "ddp" if name == "ddp" else DeepSpeedStrategy(stage=stage)
            trainer = _trainer(strategy, max_epochs=1, **case.settings)
            data = loader(trainer.global_rank, 2, 4)
            if run == "fit":
                trainer.fit(model, data)
            else:
                losses.append(trainer.test(model, data, verbose=False)[0]["test_loss"])
        found[name] = losses + [loss.item() for loss in model.losses]
    return found


def _trainer(strategy: Any, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=strategy,
        use_distributed_sampler=False,
        **QUIET,
        **settings,
    )


def _evaluated() -> dict[str, Any]:
    """Evaluation without training, of a model whose strategy was never asked to train."""
    found: dict[str, Any] = {}
    # As users write it: without `zero_allow_untested_optimizer`.
    bare = {"zero_optimization": {"stage": 3}}
    for name in ("ddp", *EVALUATED):
        strategy = "ddp" if name == "ddp" else DeepSpeedStrategy(config=bare)
        model = LateStack() if name == "late" else ValidatedStack()
        trainer = _trainer(strategy)
        data = loader(trainer.global_rank, 2, 2)
        (metrics,) = trainer.test(model, data, verbose=False)
        predictions = trainer.predict(model, data)
        assert predictions is not None
        found[name] = metrics["test_loss"], torch.cat([each.cpu() for each in predictions])
    return found


def _error(make: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError, Exception)) as caught:
        make()
    return f"{caught.type.__name__}: {caught.value}"


def _with(config: dict[str, Any], **settings: Any) -> Callable[[], Any]:
    return lambda: _fit(strategy=DeepSpeedStrategy(config=_config(2, **config)), **settings)


def _fp16_on_the_first_generation() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor, "is_fp16_supported", lambda: False)
        patch.setattr(vendor, "device_name", lambda: "GAUDI")
        _fit(strategy="deepspeed_stage_2", precision="16-true")


ERRORS: dict[str, Callable[[], Any]] = {
    "accumulation": _with({"gradient_accumulation_steps": 4}, accumulate_grad_batches=2),
    "clipping": _with({"gradient_clipping": 1.0}, gradient_clip_val=0.5),
    "precision": _with({"bf16": {"enabled": True}}),
    "unknown": _with({"gradient_cliping": 1.0}),
    "auto": _with(_optimizer("AdamW", lr="auto")),
    "decay": _with(_optimizer("Adam", adam_w_mode=False)),
    "by value": _with({}, gradient_clip_val=0.5, gradient_clip_algorithm="value"),
    "plugin": _with({}, plugins=[HPUPrecisionPlugin("bf16-mixed")]),
    "clip_gradients": lambda: _fit(ManualStack(0.3), strategy="deepspeed_stage_2"),
    "fp16": _fp16_on_the_first_generation,
    "untrained": lambda: _fit(UntrainedStack(), strategy="deepspeed_stage_2"),
}
MESSAGES = {
    "accumulation": "MisconfigurationException: gradient_accumulation_steps=4 in DeepSpeed's",
    "clipping": "MisconfigurationException: gradient_clipping=1.0 in DeepSpeed's",
    "precision": "MisconfigurationException: bf16={'enabled': True} in DeepSpeed's",
    "unknown": "ValueError: DeepSpeed knows no setting 'gradient_cliping'",
    "auto": "ValueError: optimizer.params.lr='auto' in DeepSpeed's",
    "decay": "ValueError: optimizer.params has weight_decay=0.01 and adam_w_mode=False",
    "by value": "MisconfigurationException: DeepSpeed does not support clipping gradients by value",
    "plugin": "MisconfigurationException: plugins=HPUPrecisionPlugin() would compute gradients",
    "clip_gradients": "MisconfigurationException: clip_gradients(gradient_clip_val=0.3) has no",
    "fp16": "MisconfigurationException: precision='16-true' is not supported by this card, a GAUDI",
    "untrained": "MisconfigurationException: DeepSpeed trains what its optimizer holds, but conf",
}


@pytest.fixture(scope="module", **SLOW)
def found(tmp_path_factory: Any) -> dict[Any, Any]:
    """What rank 0 found."""
    ranks = run_trainers(_train, tmp_path_factory.mktemp("ranks"))
    return ranks[0]


def _near(found: list[float], expected: list[float], tolerance: float) -> None:
    assert expected[0] - expected[-1] > 0.5, "nothing was learnt"
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("name", "expected", "tolerance"),
    [
        ("torch", "ddp", 1e-6),
        ("deepspeed", "ddp", 5e-4),  # where epsilon is added, as measured
        ("vendor", "ddp, fused", 1e-6),
        ("fused", "ddp, fused", 1e-6),
        ("scheduled", "ddp, scheduled", 1e-6),
        ("user's schedule", "ddp, scheduled", 1e-6),
    ],
)
def test_optimizers_and_schedules_train_as_with_ddp(
    found: dict[Any, Any], name: str, expected: str, tolerance: float, stage: int
) -> None:
    _near(found[name, stage], found[expected], tolerance)


@pytest.mark.parametrize("stage", MANUAL_STAGES)
def test_manual_optimization_may_step_after_several_batches(
    found: dict[Any, Any], stage: int
) -> None:
    """DeepSpeed takes each backward for the last, and throws away those before."""
    _near(found["manual", stage], found["manual", "ddp"], 1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_fp16_learns(found: dict[Any, Any], stage: int) -> None:
    """The first step may be skipped, to find how large a scale of the loss may be."""
    losses = found["fp16", stage]
    assert losses[-1] < losses[0] - 0.5


def test_every_key_of_activation_checkpointing_arrives(found: dict[Any, Any]) -> None:
    _near(found["checkpointed"]["losses"], found["ddp"], 1e-6)
    assert found["checkpointed"]["seen"] == (3, True)


def test_loaders_without_a_size_of_batches_train(found: dict[Any, Any]) -> None:
    """And only where there is training; a second loader is asked for the size of its batches."""
    assert found["loaders"] == [0, 2]


def test_the_bridges_variables_are_set_while_deepspeed_trains(found: dict[Any, Any]) -> None:
    assert set(found["checkpointed"]["variables"].values()) == {"0"}
    assert set(found["checkpointed"]["after"].values()) == {None}


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluation_needs_no_optimizer(found: dict[Any, Any], name: str) -> None:
    """ZeRO-3's raised a KeyError without `zero_allow_untested_optimizer`."""
    (loss, predictions), (expected, others) = found["evaluated"][name], found["evaluated"]["ddp"]
    assert loss == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(predictions, others, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", REUSED)
def test_a_model_goes_through_several_runs(found: dict[Any, Any], name: int | str) -> None:
    """DeepSpeed's hooks of a run would reduce gradients once more in the next."""
    assert found["reused"][name] == pytest.approx(found["reused"]["ddp"], abs=1e-6)


@pytest.mark.parametrize("name", ERRORS)
def test_settings_that_cannot_be_honoured_raise(found: dict[Any, Any], name: str) -> None:
    assert found["errors"][name].startswith(MESSAGES[name])


def test_a_users_precision_plugin_stays_the_users(found: dict[Any, Any]) -> None:
    plugin = DeepSpeedPrecision("bf16-mixed")
    trainer = pl.Trainer(
        accelerator="hpu", devices=1, strategy="deepspeed", plugins=[plugin], **QUIET
    )
    assert trainer.strategy.precision_plugin is plugin
    assert type(plugin).__name__ == "HPUDeepSpeedPrecision"


@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_advised_is_taken(stage: int) -> None:
    strategy = HPUDeepSpeedStrategy(stage=stage, compile="none")
    strategy.compiler.compile(torch.nn.Linear(1, 1), with_root=True)
    assert strategy.compiler.advice is not None
    HPUDeepSpeedStrategy(stage=stage, compile="regions").compile_choice()
