"""DeepSpeed's settings: where they are read from, and what Lightning adds to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi.deepspeed.config import optimizers
from lightning_gaudi.deepspeed.config.load import Settings, complete, read
from lightning_gaudi.deepspeed.config.presets import PRESETS
from lightning_gaudi.deepspeed.config.validation import check_keys

VARIABLE = "PL_DEEPSPEED_CONFIG_PATH"
CONFIG = {"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
WAITLESS = {"throughput": {"synchronized": False}}
YAML = """
zero_optimization:
  stage: 3
optimizer:
  type: AdamW
  params:
    lr: 1e-5
"""
BF16 = Settings(precision="bf16-mixed", world_size=8, accumulated=2, clip_val=0.5)


@pytest.fixture(params=["dict", "json", "yaml", "path", "environment"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Any:
    """The same settings, from each place that they may be in."""
    path = tmp_path / f"settings.{'yaml' if request.param == 'yaml' else 'json'}"
    path.write_text(YAML if request.param == "yaml" else json.dumps(CONFIG))
    if request.param == "environment":
        monkeypatch.setenv(VARIABLE, str(path))
        return None
    return {"dict": CONFIG, "path": path}.get(request.param, str(path))


def test_settings_are_read_from_each_source(source: Any) -> None:
    assert read(source, VARIABLE) == CONFIG


def test_no_settings_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read(None, VARIABLE) is None


def test_settings_that_were_read_are_the_callers_own() -> None:
    for given, again in ((CONFIG, CONFIG), ("bert-5b", PRESETS["bert-5b"])):
        found = read(given, VARIABLE)
        assert found is not None
        found["zero_optimization"]["stage"] = 0
        assert again["zero_optimization"]["stage"] > 0


def test_absent_file_is_named_with_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"config='none\.json' is neither .* 'bert-1\.5b'"):
        read("none.json", VARIABLE)
    monkeypatch.setenv(VARIABLE, "gone.json")
    with pytest.raises(FileNotFoundError, match=r"PL_DEEPSPEED_CONFIG_PATH='gone\.json'"):
        read(None, VARIABLE)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "cannot be read: Expecting"),
        ("a.json", '{"bf16": {}, "bf16": {}}', "'bf16' is there twice"),
        ("a.json", "[1]", "holds a list"),
        ("a.json", '{"bf16": ' + "[" * 300 + "]" * 300 + "}", "nested too deeply"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.yaml", "bf16: &a [*a]", "nested too deeply"),
        ("a.yml", "bf16: {}\nbf16: {}", "'bf16' is there twice"),
    ],
)
def test_files_that_hold_no_settings_are_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read(path, VARIABLE)
    assert str(path) in str(caught.value)


def test_lightnings_settings_are_added() -> None:
    found = complete({"zero_optimization": {"stage": 1}}, BF16)
    assert found == {
        "zero_optimization": {"stage": 1},
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "timers": WAITLESS,
    }


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({"gradient_clipping": 0.3}, Settings("32-true", 2), {"gradient_clipping": 0.3}),
        ({"gradient_clipping": 0.5}, BF16, {"gradient_clipping": 0.5}),
        ({"gradient_accumulation_steps": 2}, BF16, {"gradient_accumulation_steps": 2}),
        ({"gradient_accumulation_steps": 4}, Settings("32-true", 2),
         {"gradient_accumulation_steps": 4}),
        ({"train_batch_size": 64}, BF16, {"train_micro_batch_size_per_gpu": 4}),
        ({}, Settings("32-true", 2, micro_batch_size=lambda: 7),
         {"train_micro_batch_size_per_gpu": 7}),
        ({"bf16": {"immediate_grad_update": True}}, BF16,
         {"bf16": {"enabled": True, "immediate_grad_update": True}}),
        ({"fp16": {"enabled": False}}, BF16, {"fp16": {"enabled": False}}),
        ({"fp16": {"loss_scale": 8}},
         Settings("16-mixed", 2, fp16={"loss_scale": 0, "hysteresis": 2}),
         {"fp16": {"enabled": True, "loss_scale": 8, "hysteresis": 2}}),
    ],
)  # fmt: skip
def test_what_the_user_set_stays(
    config: dict[str, Any], settings: Settings, expected: dict[str, Any]
) -> None:
    found = complete(config, settings)
    assert {name: found[name] for name in expected} == expected


def test_auto_takes_lightnings_value() -> None:
    """As Hugging Face's examples have it."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config: dict[str, Any] = {
        **dict.fromkeys((*names, "gradient_clipping"), "auto"),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
    }
    settings = Settings("bf16-true", 4, 3, 1.0, lambda: 5, lambda: 70)
    assert complete(config, settings) == {
        "train_micro_batch_size_per_gpu": 5,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False, "loss_scale": 0},
        "zero_optimization": {"stage": 2},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 70}},
        "timers": WAITLESS,
    }
    assert config["scheduler"]["params"]["total_num_steps"] == "auto"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gradient_accumulation_steps": 4},
         "gradient_accumulation_steps=4 .* accumulate_grad_batches=2"),
        ({"gradient_clipping": 1.0}, "gradient_clipping=1.0 .* gradient_clip_val=0.5"),
        ({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4},
         "train_batch_size=100 .* 8 cards with 4 samples each and 2 accumulated batches make 64"),
        ({"bf16": {"enabled": False}}, "bf16={'enabled': False} .* precision='32-true'"),
        ({"fp16": {"enabled": True}}, "fp16={'enabled': True} .* precision='16-mixed'"),
    ],
)  # fmt: skip
def test_contradictions_with_the_trainer_raise(config: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        complete(config, BF16)


def test_auto_that_lightning_cannot_fill_raises() -> None:
    config = {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    with pytest.raises(ValueError, match=r"optimizer\.params\.lr='auto' .* configure_optimizers"):
        complete(config, BF16)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_hold_only_what_deepspeed_knows(name: str) -> None:
    check_keys(PRESETS[name])
    assert complete(PRESETS[name], Settings("bf16-mixed", 8))["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimisation": {}}, "'zero_optimisation' .* Did you mean 'zero_optimization'"),
        ({"zero_optimization": {"overlap_com": True}},
         "'overlap_com' in 'zero_optimization' .* Did you mean 'overlap_comm'"),
        ({"zero_optimization": {"offload_param": {"pin": 1}}},
         "'pin' in 'zero_optimization.offload_param' .* Remove it"),
        ({"activation_checkpointing": {"num_checkpoints": 4}},
         "'num_checkpoints' in 'activation_checkpointing' .* Did you mean 'number_checkpoints'"),
        ({"zero_optimization": {"stage": 7}}, "zero_optimization.stage=7 .* not valid"),
        ({"wholly_else": 1}, "no setting 'wholly_else' and would ignore it. Remove it"),
    ],
)  # fmt: skip
def test_unknown_keys_are_named_with_the_nearest_known(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_keys(config)


def test_known_keys_pass_wherever_they_are() -> None:
    check_keys(
        {
            "train_batch_size": 3,
            "gradient_accumulation_steps": "auto",
            "sequence_parallel_size": 1,
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            "activation_checkpointing": {
                "partition_activations": True,
                "cpu_checkpointing": True,
                "contiguous_memory_optimization": True,
                "number_checkpoints": 3,
                "synchronize_checkpoint_boundary": True,
                "profile": True,
            },
            "optimizer": {"type": "Adam", "params": {"lr": 1, "any": 2}},
            "aio": {"block_size": 4096, "thread_count": 1},
            "flops_profiler": {"enabled": False},
            "wall_clock_breakdown": False,
        }
    )


def test_a_weight_decay_that_would_be_dropped_raises() -> None:
    params = {"lr": 1e-3, "weight_decay": 0.1, "adam_w_mode": False}
    with pytest.raises(ValueError, match=r"weight_decay=0\.1 and adam_w_mode=False"):
        optimizers.check_named_optimizer({"optimizer": {"type": "Adam", "params": params}})
    optimizers.check_named_optimizer(
        {"optimizer": {"type": "Adam", "params": {**params, "torch_adam": True}}}
    )
