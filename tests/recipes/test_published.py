"""Configurations that claim a published run are that run, setting by setting; and it is told apart.

The registry says what the sources state; `FIGURES` here is written down a second time, so that a
slip in one of both shows.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_gaudi.tools.command_line import catalog
from recipes.common.comparison import planned_run
from recipes.common.errors import UserError
from recipes.common.published import (
    Run,
    compare,
    differing_settings,
    find_run,
    flatten,
    read_runs,
    render,
)

ROOT = Path(__file__).parents[2] / "recipes"
RUNS = {
    (folder.name, name): run
    for folder in sorted(path.parent for path in ROOT.glob("*/__main__.py"))
    for name, run in read_runs(folder).items()
}
HOUSEKEEPING = (
    *("trainer.default_root_dir", "trainer.log_every_n_steps", "trainer.num_sanity_val_steps"),
    *("trainer.logger", "trainer.callbacks", "published"),
)
"""What says where and how often something is written, and nothing of the run."""
FIGURES = {
    ("bert_pretraining", "bert_base_8x32", "Gaudi"): {
        "train_samples_per_s": 520.2,
        "train_seconds": 8 * 3600 + 53 * 60,
    },
    ("bert_pretraining", "bert_base_8x32", "Gaudi 2"): {
        "train_samples_per_s": 1580.2,
        "train_seconds": 2 * 3600 + 55 * 60,
    },
    ("bert_pretraining", "bert_base_8x64", "Gaudi 2"): {
        "train_samples_per_s": 1835.8,
        "train_seconds": 1 * 3600 + 33 * 60,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_8x", "Gaudi 2"): {
        "val/perplexity": 2.3665,
        "train_samples_per_s": 148.1,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_8x", "Gaudi 3"): {
        "val/perplexity": 2.3666,
        "train_samples_per_s": 219.7,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_fp8_8x", "Gaudi 2"): {
        "val/perplexity": 2.3692,
        "train_samples_per_s": 232.4,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_fp8_8x", "Gaudi 3"): {
        "val/perplexity": 2.3750,
        "train_samples_per_s": 323.2,
    },
    ("llm_finetuning", "llama_3_1_8b_lora_alpaca_fp8_8x", "Gaudi 2"): {
        "val/accuracy": 0.7121,
        "train_samples_per_s": 22.59,
    },
    ("llm_finetuning", "mistral_7b_lora_alpaca_fp8_1x", "Gaudi 2"): {
        "val/accuracy": 0.7538,
        "train_samples_per_s": 12.37,
    },
    ("llm_finetuning", "mistral_7b_lora_alpaca_fp8_1x", "Gaudi 3"): {
        "val/accuracy": 0.7538,
        "train_samples_per_s": 12.37,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_gaudi_8x", "Gaudi"): {
        "val/perplexity": 2.7542,
        "train_samples_per_s": 20.4,
    },
    ("llm_finetuning", "llama_7b_lora_dolly_1x", "Gaudi 2"): {
        "val/perplexity": 3.8436,
        "train_samples_per_s": 18.43,
    },
    ("llm_finetuning", "llama_7b_lora_dolly_1x", "Gaudi 3"): {
        "val/perplexity": 3.8439,
        "train_samples_per_s": 29.82,
    },
    ("llm_finetuning", "llama_7b_lora_dolly_gaudi_1x", "Gaudi"): {
        "val/perplexity": 3.9168,
        "train_samples_per_s": 2.295,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_fsdp_8x", "Gaudi 2"): {
        "val/perplexity": 2.4259,
        "train_samples_per_s": 93.5,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_fsdp_8x", "Gaudi 3"): {
        "val/perplexity": 2.4263,
        "train_samples_per_s": 73.25,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_ulysses_8x", "Gaudi 2"): {
        "val/perplexity": 2.8889,
        "train_samples_per_s": 34.41,
    },
    ("llm_finetuning", "llama_7b_lora_alpaca_ulysses_8x", "Gaudi 3"): {
        "val/perplexity": 2.8421,
        "train_samples_per_s": 52.49,
    },
    ("llm_finetuning", "qwen2_7b_sft_lora_8x", "Gaudi 2"): {"train_samples_per_s": 120},
    ("llm_finetuning", "qwen2_7b_sft_lora_8x", "Gaudi 3"): {"train_samples_per_s": 193.0},
    ("llm_finetuning", "qwen2_7b_sft_8x", "Gaudi 2"): {"train_samples_per_s": 7.342},
    ("llm_finetuning", "qwen2_7b_sft_8x", "Gaudi 3"): {"train_samples_per_s": 13.97},
    ("llm_finetuning", "qwen2_72b_sft_lora_8x", "Gaudi 2"): {
        "val/perplexity": 3.7021,
        "train_samples_per_s": 7.554,
    },
    ("llm_finetuning", "qwen2_72b_sft_lora_8x", "Gaudi 3"): {
        "val/perplexity": 3.7286,
        "train_samples_per_s": 13.07,
    },
    ("llm_finetuning", "mixtral_8x7b_sft_lora_8x", "Gaudi 2"): {"train_samples_per_s": 12.0},
    ("llm_finetuning", "mixtral_8x7b_sft_lora_8x", "Gaudi 3"): {"train_samples_per_s": 13.1},
    ("llm_finetuning", "falcon_40b_lora_guanaco_8x", "Gaudi 2"): {
        "val/perplexity": 4.0,
        "train_samples_per_s": 15.0,
    },
    ("llm_finetuning", "falcon_40b_lora_guanaco_8x", "Gaudi 3"): {
        "val/perplexity": 3.6948,
        "train_samples_per_s": 24.64,
    },
    ("llm_finetuning", "llama_7b_sft_lora_8x", "Gaudi 2"): {"train_samples_per_s": 51.54},
    ("llm_finetuning", "llama_7b_sft_lora_8x", "Gaudi 3"): {"train_samples_per_s": 86.19},
    ("llm_finetuning", "llama_7b_dpo_lora_8x", "Gaudi 2"): {"train_samples_per_s": 13.50},
    ("llm_finetuning", "llama_7b_dpo_lora_8x", "Gaudi 3"): {"train_samples_per_s": 15.14},
    ("llm_finetuning", "llama_1b_qlora_alpaca_1x", "Gaudi 2"): {"val/loss": 1.225},
    ("llm_finetuning", "llama_1b_qlora_alpaca_1x", "Gaudi 3"): {"val/loss": 1.225},
    ("llm_finetuning", "llama_8b_qlora_alpaca_1x", "Gaudi 2"): {"val/loss": 1.044},
    ("llm_finetuning", "llama_8b_qlora_alpaca_1x", "Gaudi 3"): {"val/loss": 1.044},
    ("llm_finetuning", "llama_70b_qlora_alpaca_1x", "Gaudi 2"): {"val/loss": 0.961},
    ("llm_finetuning", "llama_70b_qlora_alpaca_1x", "Gaudi 3"): {"val/loss": 0.961},
    ("mrpc", "gaudi_1x", "Gaudi"): {
        "val/f1": 0.8968,
        "val/accuracy": 0.8505,
        "train_samples_per_s": 82.8,
        "val_samples_per_s": 63.2,
        "train_seconds": 2 * 60 + 12,
    },
    ("mrpc", "gaudi_8x", "Gaudi"): {
        "val/f1": 0.8897,
        "train_samples_per_s": 919.6,
        "train_seconds": 65.6,
    },
    ("mrpc", "gaudi2_8x", "Gaudi 2"): {
        "val/f1": 0.8453,
        "train_samples_per_s": 2845.1,
        "train_seconds": 31.4,
    },
    ("text_generation", "bloomz_7b_1x", "Gaudi"): {"latency_seconds": 2.865},
    ("text_generation", "bloomz_7b_1x", "Gaudi 2"): {"latency_seconds": 1.066},
    ("text_generation", "bloomz_7b_8x", "Gaudi"): {"latency_seconds": 3.029},
    ("text_generation", "bloomz_7b_8x", "Gaudi 2"): {"latency_seconds": 0.737},
    ("text_generation", "bloomz_176b_8x", "Gaudi 2"): {"latency_seconds": 3.717},
    ("t5_summarization", "t5_3b_fp32_8x", "Gaudi 2"): {"train_samples_per_s": 19.7},
    ("t5_summarization", "t5_small_gaudi2_8x", "Gaudi 2"): {
        "val/rougeLsum": 38.60,
        "train_samples_per_s": 1922.1,
        "train_seconds": 162.1,
    },
    ("t5_summarization", "t5_small_gaudi_8x", "Gaudi"): {
        "val/rougeLsum": 38.59,
        "train_samples_per_s": 267.8,
        "train_seconds": 1089.4,
    },
    ("text_to_image", "stable_diffusion_1_4", "Gaudi"): {"seconds_per_picture": 3.25},
    ("text_to_image", "stable_diffusion_1_4", "Gaudi 2"): {"seconds_per_picture": 0.925},
}


ELSEWHERE = {
    ("bert_pretraining", "bert_base_8x32"): {"train_samples_per_s": 981.6},
    ("bert_pretraining", "bert_base_8x64"): {"train_samples_per_s": 1082.6},
    ("t5_summarization", "t5_3b_fp32_8x"): {"train_samples_per_s": 8.07},
    ("text_generation", "bloomz_7b_1x"): {"latency_seconds": 2.119},
    ("text_generation", "bloomz_7b_8x"): {"latency_seconds": 2.417},
    ("text_generation", "bloomz_176b_8x"): {"latency_seconds": 4.402},
    ("text_to_image", "stable_diffusion_1_4"): {"seconds_per_picture": 2.63},
}
"""On A100 80GB."""


def _config(run: Run) -> dict[str, Any]:
    path = ROOT / run.recipe / catalog.PUBLISHED / f"{run.name}.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return config


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *outer, name = path.split(".")
    for key in outer:
        if isinstance(config, list):
            config = next(c for c in config if c["class_path"].endswith(f".{key}"))["init_args"]
        elif config.get("class_path", "").endswith(f".{key}"):
            config = config["init_args"]
        else:
            config = config[key]
    if isinstance(config, list):
        raise AssertionError(path)
    config[name] = value


def _ids(key: tuple[str, str]) -> str:
    return "-".join(key)


@pytest.fixture(params=RUNS, ids=_ids)
def run(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]


def test_each_run_has_its_configuration_and_each_configuration_its_run() -> None:
    files = {
        (path.parents[1].name, path.stem) for path in ROOT.glob(f"*/{catalog.PUBLISHED}/*.yaml")
    }
    assert files == set(RUNS)
    assert len(files) >= 29
    claims = {
        (path.relative_to(ROOT).parts[0], config["published"]): path.parent.name
        for path in ROOT.rglob("*.yaml")
        if "published" in (config := yaml.safe_load(path.read_text("utf-8")))
    }
    assert claims == dict.fromkeys(RUNS, catalog.PUBLISHED)


def test_a_configuration_is_the_run_that_it_claims(run: Run) -> None:
    config = _config(run)
    assert config["published"] == run.name
    assert differing_settings(run, config) == []


def test_every_setting_is_stated_a_default_or_said_to_be_ours(run: Run) -> None:
    known = {**run.settings, **run.defaults, **run.ours}
    leaves = [path for path in flatten(_config(run)) if not path.startswith(HOUSEKEEPING)]
    assert sorted(set(leaves) - set(known)) == []
    assert sorted(path for path in run.ours if path not in leaves) == []
    groups = (run.settings, run.defaults, run.ours)
    assert len(known) == sum(map(len, groups)), "one setting stands in two groups"
    assert all(run.ours.values())


def test_each_changed_setting_is_found(run: Run) -> None:
    stated = {**run.settings, **run.defaults}
    assert len(stated) > 15
    for path, value in stated.items():
        config = copy.deepcopy(_config(run))
        _set(config, path, f"other than {value}")
        (found,) = differing_settings(run, config)
        assert found.startswith(f"{path} is other than")
    config = _config(run)
    config["environment"]["PT_HPU_MAX_COMPOUND_OP_SIZE"] = 1
    (found,) = differing_settings(run, config)
    assert found == "environment.PT_HPU_MAX_COMPOUND_OP_SIZE is 1, and was not set"


def test_cards_rows_and_accumulation_make_the_global_batch(run: Run) -> None:
    config = _config(run)
    trainer = config["trainer"]
    assert trainer["devices"] == run.num_cards
    accumulated = trainer.get("accumulate_grad_batches", 1)  # where it trains
    # Cards that hold a model together compute on the same rows.
    strategy = trainer.get("strategy")
    options = strategy["init_args"] if isinstance(strategy, dict) else {}
    together = options.get("tensor_parallel_size", 1)
    num_parts = run.num_cards // together
    assert num_parts * config["data"]["batch_size"] * accumulated == run.global_batch


def test_figures_are_those_of_the_sources() -> None:
    found = {
        (*key, hardware): {f.name: f.value for f in run.figures if f.hardware == hardware}
        for key, run in RUNS.items()
        for hardware in {figure.hardware for figure in run.figures}
    }
    assert found.keys() == FIGURES.keys()
    for key, values in FIGURES.items():
        assert found[key] == pytest.approx(values, rel=2e-3)


def test_figures_of_other_cards_are_those_of_the_sources() -> None:
    found = {key: {f.name: f.value for f in run.elsewhere} for key, run in RUNS.items()}
    assert {key: values for key, values in found.items() if values} == ELSEWHERE
    assert {f.hardware for run in RUNS.values() for f in run.elsewhere} == {"A100 80GB"}


def test_a_plan_is_given_all_figures_with_their_batches() -> None:
    run = RUNS["t5_summarization", "t5_3b_fp32_8x"]
    config = _config(run)
    config["data"]["source"] = "embedded"
    planned = planned_run(run, config)
    assert [(f.hardware, f.batch_size, f.value) for f in planned.figures] == [
        ("Gaudi 2", 1, 19.7),
        ("A100 80GB", 16, 8.07),
    ]
    no_room = [(each.hardware, each.batch_size) for each in planned.no_room]
    assert no_room == [("Gaudi", 1), ("Gaudi 2", 2)]
    assert planned.differing == ("data.source is embedded, not hub",)
    assert (planned.num_cards, planned.num_steps) == (8, None)
    assert planned_run(RUNS["bert_pretraining", "bert_base_8x64"], {}).num_steps == 20000
    for key in RUNS:
        assert all(f.batch_size > 0 for f in planned_run(RUNS[key], {}).figures)


def test_rates_times_and_steps_of_the_pretraining_agree() -> None:
    for name in ("bert_base_8x32", "bert_base_8x64"):
        run = RUNS["bert_pretraining", name]
        for hardware in run.hardware:
            values = {f.name: f.value for f in run.figures if f.hardware == hardware}
            samples = run.settings["trainer.max_steps"] * run.global_batch
            seconds = samples / values["train_samples_per_s"]
            assert seconds == pytest.approx(values["train_seconds"], rel=0.01)


def test_a_run_says_who_says_so(run: Run) -> None:
    titles = {source.title for source in run.sources}
    assert all(source.address.startswith("https://") and source.date for source in run.sources)
    told = (*run.figures, *run.elsewhere, *run.no_room)
    assert {each.source for each in told} <= titles
    assert {figure.hardware for figure in run.figures} <= set(run.hardware)
    assert {figure.better for figure in run.figures} <= {"higher", "lower"}
    assert all(0 < figure.tolerance < 0.1 for figure in run.figures)


def test_operators_are_the_sources_as_far_as_autocast_has_them() -> None:
    from lightning_gaudi._core.precision import autocast_ops

    run = RUNS["mrpc", "gaudi_1x"]
    names = {"cross_entropy": "cross_entropy_loss"}
    for kind, operators in run.operators.items():
        path = ROOT / "mrpc" / catalog.PUBLISHED / f"ops_{kind}.txt"
        theirs = {names.get(each, each) for each in operators} & autocast_ops.KNOWN_OPS
        assert path.read_bytes().decode().split("\n")[:-1] == sorted(theirs)
        assert len(operators) - len(theirs) == {"bf16": 2, "fp32": 0}[kind]


def test_a_run_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"published=gaudi_1 is no run .* Did you mean gaudi_1x\?"):
        find_run(ROOT / "mrpc", "gaudi_1")
    with pytest.raises(UserError, match="There are: gaudi_1x, gaudi_8x, gaudi2_8x"):
        find_run(ROOT / "mrpc", "nothing")


def test_figures_are_compared_on_the_same_hardware_only() -> None:
    run = RUNS["bert_pretraining", "bert_base_8x32"]
    rows = compare(run, {"train_samples_per_s": 1580.2 * 0.96, "val/f1": 1.0}, "Gaudi 2")
    found = [(row.figure.hardware, row.figure.name, row.is_within) for row in rows]
    assert found == [
        ("Gaudi", "train_samples_per_s", None),
        ("Gaudi", "train_seconds", None),
        ("Gaudi 2", "train_samples_per_s", True),
        ("Gaudi 2", "train_seconds", None),
    ]
    assert rows[2].difference == pytest.approx(-0.04)
    assert all(row.is_within is None for row in compare(run, {"train_samples_per_s": 1.0}, None))


@pytest.mark.parametrize(
    ("name", "share", "is_within"),
    [
        ("train_samples_per_s", 2.0, True),
        ("train_samples_per_s", 0.94, False),
        ("train_seconds", 0.5, True),
        ("train_seconds", 1.06, False),
        ("val/f1", 0.985, False),
        ("val/f1", 0.995, True),
    ],
)
def test_a_run_agrees_if_it_is_no_worse_than_the_tolerance(
    name: str, share: float, is_within: bool
) -> None:
    run = RUNS["mrpc", "gaudi_8x"]
    value = next(figure.value for figure in run.figures if figure.name == name)
    rows = {row.figure.name: row for row in compare(run, {name: share * value}, "Gaudi")}
    assert rows[name].is_within is is_within
    assert rows[name].difference == pytest.approx(share - 1)


def test_the_table_says_what_agrees_and_what_is_not_comparable() -> None:
    run = RUNS["mrpc", "gaudi_8x"]
    rows = compare(run, {"val/f1": 0.89, "train_samples_per_s": 100.0}, "Gaudi")
    shown = render(run, rows, [])
    assert "val/f1               0.8897             Gaudi  0.89" in shown
    assert "within 1%" in shown
    assert "worse by more than 5%" in shown
    assert "train_seconds        65.644 s           Gaudi  not measured" in shown
    assert "not comparable" not in shown
    shown = render(run, rows, ["trainer.devices is 2, not 8"])
    assert "not comparable:\n  trainer.devices is 2, not 8\n" in shown
    assert "within" not in shown
    assert f"source: {run.sources[0].title}" in shown
    assert dataclasses.asdict(run)["name"] == "gaudi_8x"
