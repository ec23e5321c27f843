"""Every YAML of the tree is parsed and instantiated: data, model, Trainer, callbacks, loggers.

What a configuration fetches from the hub is exchanged for a tiny model and tokenizer in a folder;
every other setting stays as it is.
"""

import contextlib
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from lightning_gaudi import (
    HPUAccelerator,
    HPUDDPStrategy,
    HPUDeepSpeedStrategy,
    HPUModelParallelStrategy,
    SingleHPUStrategy,
)
from lightning_gaudi.tools.command_line import catalog
from recipes.common.tokenization import train_bpe, train_byte_bpe, train_wordpiece
from recipes.common.training import cuts_up
from tests.helpers.diffusion import save_pipeline

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/__main__.py"))
REGISTRIES = sorted((ROOT / "recipes").glob(f"*/{catalog.REGISTRY}"))
CONFIGURATIONS = sorted(set((ROOT / "recipes").rglob("*.yaml")) - set(REGISTRIES))
WORDS = [["the quick brown fox jumps over the lazy dog", "and summarize: again"] * 20]


def _recipe(path: Path) -> str:
    return path.relative_to(ROOT / "recipes").parts[0]


def _name(path: Path) -> str:
    return "-".join(path.relative_to(ROOT / "recipes").with_suffix("").parts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict[str, str]:
    """Folders with tiny models and their tokenizers, by recipe."""
    names = ("llm_finetuning", "mrpc", "t5_summarization", "text_generation", "text_to_image")
    folders = {name: tmp_path_factory.mktemp(name) for name in names}
    save_pipeline("sd1", folders["text_to_image"])
    bert = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=1)
    BertForSequenceClassification(bert).save_pretrained(folders["mrpc"])
    train_wordpiece(WORDS, 60).save_pretrained(folders["mrpc"])
    t5 = T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(t5).save_pretrained(folders["t5_summarization"])
    train_bpe(WORDS, 60).save_pretrained(folders["t5_summarization"])
    bloom = BloomConfig(vocab_size=300, hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(bloom).save_pretrained(folders["text_generation"])
    train_byte_bpe(WORDS, 300).save_pretrained(folders["text_generation"])
    llama = LlamaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(llama).save_pretrained(folders["llm_finetuning"])
    train_byte_bpe(WORDS, 300).save_pretrained(folders["llm_finetuning"])
    return {name: str(folder) for name, folder in folders.items()}


def _from_the_hub(config: dict[str, Any], folder: str | None) -> list[str]:
    """Overrides of what a machine without a network does not have."""
    names = [
        (section, key)
        for section, key in (("model", "name"), ("data", "tokenizer"))
        if config.get(section, {}).get(key)
    ]
    overrides = [f"--{section}.{key}={folder}" for section, key in names if folder]
    if overrides and "vocab_size" in config["data"]:
        overrides.append("--data.vocab_size=60")
    return overrides


def _strategy(trainer: dict[str, Any]) -> type:
    """What trains with these settings."""
    strategy = trainer.get("strategy", "auto")
    if strategy == "auto":
        return HPUDDPStrategy if trainer["devices"] > 1 else SingleHPUStrategy
    if isinstance(strategy, str) or strategy["class_path"].endswith("DeepSpeedStrategy"):
        return HPUDeepSpeedStrategy
    return HPUModelParallelStrategy


@pytest.mark.slow_but(
    *(f"{recipe}-simulated" for recipe in RECIPES),
    "bert_pretraining-published-bert_large_phase1",
    "mrpc-published-gaudi_1x",
    "t5_summarization-published-t5_small_gaudi2_8x",
    "text_generation-published-bloomz_7b_1x",
    "text_to_image-published-stable_diffusion_1_4",
)
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=_name)
def test_a_configuration_is_instantiated_as_it_is(path, tiny):
    recipe = _recipe(path)
    run = importlib.import_module(f"recipes.{recipe}.__main__").run
    config = yaml.safe_load(path.read_text())
    overrides = _from_the_hub(config, tiny.get(recipe))
    # This process has its mode; tests/tools/command_line/test_environment.py asks for others.
    overrides.append("--environment=null")
    if "query_key_value" in config["model"].get("lora_targets", ()):  # Falcon's, not Llama's
        overrides.append("--model.lora_targets=[q_proj]")
    # Weights of a real size are neither made nor drawn; tiny ones are read, which needs memory.
    with contextlib.nullcontext() if recipe in tiny else torch.device("meta"):
        cli = run(["--config", str(path), *overrides], run=False)
    assert isinstance(cli.trainer.accelerator, HPUAccelerator)
    if "max_steps" in config["trainer"] or "max_epochs" in config["trainer"]:
        assert cli.trainer.checkpoint_callback.save_last
    assert cli.trainer.num_devices == config["trainer"]["devices"]
    if "precision" in config["trainer"]:
        assert cli.trainer.precision == config["trainer"]["precision"]
    else:  # a plugin, with what it computes in beside fp8
        (plugin,) = config["trainer"]["plugins"]
        assert cli.trainer.precision == plugin["init_args"]["precision"]
        assert cli.trainer.precision_plugin.computes_in_fp8
    assert isinstance(cli.trainer.strategy, _strategy(config["trainer"]))
    if cuts_up(cli.trainer.strategy):  # or the fit would refuse it
        assert cli.model.hparams["optimizer"] in ("auto", "adamw")
    for name in cli.links:
        assert cli.model.hparams[name] == cli.datamodule.hparams[name]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=_name)
def test_a_configuration_says_what_it_needs_and_how_to_run_it(path):
    header = path.read_text().split("\nseed_everything")[0]
    is_ours = "choices here are ours" in header
    assert is_ours == (path.parent.name != "published" and not path.stem.startswith("simulated"))
    for word in ("# Needs:", "# Run:", "# Override:"):
        assert word in header, word
    assert f"--config {path.relative_to(ROOT)}" in header
    assert re.search(rf"-m recipes.{_recipe(path)} (fit|predict)", header)


def test_no_other_yaml_is_left_untested():
    tracked = subprocess.run(
        ["git", "ls-files", "*.yaml", "*.yml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {str(path.relative_to(ROOT)) for path in (*CONFIGURATIONS, *REGISTRIES)}
    # tests/deploy looks at the manifests, tests/documentation at what the site is made of and the
    # workflows.
    elsewhere = (
        "deploy/",
        ".github/",
        "tests/documentation/",
        "mkdocs.yml",
        "scripts/documentation_",
    )
    others = {path for path in tracked if not path.startswith(elsewhere)} - ours
    # tests/examples trains with it.
    assert others == {"examples/language_model.yaml"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_what_a_reader_looks_for(recipe):
    folder = ROOT / "recipes" / recipe
    for name in ("module.py", "data.py", "__main__.py", "README.md", "simulated.yaml"):
        assert (folder / name).is_file(), name
    assert "ublished, not measured here" in (folder / "README.md").read_text()
