from pathlib import Path

import pytest
import torch
import yaml

import recipes.bert_pretraining
from recipes.bert_pretraining.__main__ import LINKS, main
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.common import cli as recipe_cli
from tests.helpers.forked import fork_module

FOLDER = Path(recipes.bert_pretraining.__file__).parent


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What the recipe's program sets before torch is imported, for the published runs."""
    for path in (FOLDER / "published").glob("*.yaml"):
        for name, value in (yaml.safe_load(path.read_text()).get("environment") or {}).items():
            monkeypatch.setenv(name, str(value))


def _instantiate(config: Path, *args: str) -> recipe_cli.RecipeCLI:
    arguments = ["--config", str(config), *args]
    return recipe_cli.run(BertPretraining, BertData, arguments, links=LINKS, run=False)


@pytest.mark.parametrize(
    ("name", "vocab_size"), [("published/bert_base_8x32", 32_000), ("bert_base_packed_8x", 30_522)]
)
def test_bert_base_has_its_size(name, vocab_size):
    with torch.device("meta"):
        cli = _instantiate(FOLDER / f"{name}.yaml", "--trainer.devices=1")
    weights = cli.model.model.bert.num_parameters()
    # bert-base-uncased, and the embeddings of another vocabulary
    assert weights == 109_482_240 + 768 * (vocab_size - 30_522)


@pytest.mark.parametrize(
    ("phase", "sizes", "schedule"),
    [
        # tokens, predictions, micro-batch, sequences a card and step; steps, peak, warm-up
        (1, (128, 20, 64, 8192), (7038, 6e-3, 0.2843)),
        (2, (512, 80, 8, 4096), (1563, 4e-3, 0.128)),
    ],
)
def test_the_phases_of_bert_large_are_the_published_ones(phase, sizes, schedule):
    with torch.device("meta"):
        path = FOLDER / "published" / f"bert_large_phase{phase}.yaml"
        cli = _instantiate(path, "--trainer.devices=1")
    settings, trainer = cli.model.hparams | cli.datamodule.hparams, cli.trainer
    names = ("max_seq_length", "max_predictions_per_seq", "batch_size")
    per_step = settings["batch_size"] * trainer.accumulate_grad_batches
    assert (*(settings[name] for name in names), per_step) == sizes
    assert (trainer.max_steps, settings["learning_rate"], settings["warmup_steps"]) == schedule
    assert (settings["optimizer"], settings["schedule"]) == ("fused_lamb", "polynomial")
    assert (settings["weight_decay"], settings["next_sentence"]) == (0.01, True)
    assert trainer.gradient_clip_val is None  # LAMB clips
    assert cli.model.model.bert.num_parameters() == 335_141_888  # bert-large-uncased
    assert cli.model.model.config.max_position_embeddings == 512


@pytest.mark.slow_but(
    "--model.optimizer=adam-fused_adamw", "--model.no_such_setting=1-no_such_setting"
)
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--data.source=path", "data.source=path needs data.path"),
        ("--data={source: path, path: /no/such/text}", "data.path=/no/such/text does not exist"),
        ("--data.max_predictions_per_seq=3", "data.max_predictions_per_seq=3 is too small"),
        ("--model.no_such_setting=1", "no_such_setting"),
        ("--model.optimizer=adam", "fused_adamw"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(argument, message, capsys):
    arguments = ["fit", "--config", str(FOLDER / "simulated.yaml")]
    with pytest.raises(SystemExit) as exit_info:
        main([*arguments, argument])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_corpus_is_reported_before_a_card_is_looked_for():
    # There is no card: an error about it would mean that it was asked for first.
    result = fork_module(
        "recipes.bert_pretraining",
        *("fit", "--config", str(FOLDER / "simulated.yaml")),
        *("--data.source=path", "--data.path=/no/such/text"),
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        cwd=FOLDER.parents[1],
        check=False,
    )
    assert result.returncode == 2
    assert "data.path=/no/such/text does not exist" in result.stderr
    assert "accelerator" not in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_fused_adamw_is_refused_elsewhere_and_never_exchanged():
    module = BertPretraining(hidden_size=32, num_layers=1, optimizer="fused_adamw")
    with pytest.raises(ValueError, match=r"model\.optimizer=fused_adamw .* on cpu\. Use .*=adamw"):
        module.configure_optimizers()
