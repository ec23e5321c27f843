import sys
from pathlib import Path

import pytest
import torch

import recipes.bert_pretraining
from lightning_gaudi import HPUAccelerator
from recipes.bert_pretraining.__main__ import LINKS, main
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.common import cli as recipe_cli
from tests.helpers.process import run

FOLDER = Path(recipes.bert_pretraining.__file__).parent
CONFIGURATIONS = sorted(FOLDER.glob("*.yaml"))


def _instantiate(config: Path, *args: str) -> recipe_cli.RecipeCLI:
    arguments = ["--config", str(config), *args]
    return recipe_cli.run(BertPretraining, BertData, arguments, links=LINKS, run=False)


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda path: path.stem)
def test_configuration_is_valid_on_one_card(config):
    cli = _instantiate(config, "--trainer.devices=1")
    assert isinstance(cli.trainer.accelerator, HPUAccelerator)
    shared = ("vocab_size", "max_seq_length", "next_sentence")
    assert all(cli.model.hparams[name] == cli.datamodule.hparams[name] for name in shared)


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda path: path.stem)
def test_configuration_says_what_it_needs_and_how_to_run_it(config):
    header = config.read_text().split("\nseed_everything")[0]
    assert all(word in header for word in ("# Needs:", "# Run:", "# Override:"))


def test_the_headline_configuration_is_bert_base():
    cli = _instantiate(FOLDER / "gaudi2_8x.yaml", "--trainer.devices=1")
    weights = cli.model.model.bert.num_parameters()
    assert weights == 109_482_240  # bert-base-uncased
    settings = cli.model.hparams | cli.datamodule.hparams
    assert (settings["max_seq_length"], settings["batch_size"]) == (512, 32)
    assert (settings["learning_rate"], settings["optimizer"]) == (5e-5, "fused_adamw")
    assert cli.trainer.precision == "bf16-mixed"


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


def test_a_missing_corpus_is_reported_before_a_card_is_looked_for():
    command = [sys.executable, "-m", "recipes.bert_pretraining", "fit"]
    config = ["--config", str(FOLDER / "simulated.yaml")]
    wrong = ["--data.source=path", "--data.path=/no/such/text"]
    # There is no card: an error about it would mean that it was asked for first.
    without_card = {"LIGHTNING_GAUDI_SIMULATE": None, "PYTHONWARNINGS": "ignore"}
    result = run([*command, *config, *wrong], env=without_card, cwd=FOLDER.parents[1], check=False)
    assert result.returncode == 2
    assert "data.path=/no/such/text does not exist" in result.stderr
    assert "accelerator" not in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_fused_adamw_is_refused_elsewhere_and_never_exchanged():
    module = BertPretraining(hidden_size=32, num_layers=1, optimizer="fused_adamw")
    with pytest.raises(ValueError, match=r"model\.optimizer=fused_adamw .* on cpu\. Use .*=adamw"):
        module.configure_optimizers()


def test_adamw_decays_all_weights_but_biases_and_layer_norms():
    module = BertPretraining(hidden_size=32, num_layers=1, weight_decay=0.1)
    decayed, kept = module._parameter_groups()
    names = {id(p): name for name, p in module.named_parameters()}
    assert all(names[id(p)].endswith("weight") for p in decayed["params"])
    assert all("LayerNorm" in names[id(p)] or names[id(p)].endswith("bias") for p in kept["params"])
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    count = sum(p.requires_grad for p in module.parameters())
    assert len(decayed["params"]) + len(kept["params"]) == count


def test_learning_rate_warms_up_and_decays_to_zero():
    module = BertPretraining(hidden_size=32, num_layers=1, learning_rate=1.0, warmup_steps=4)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = module._schedule(optimizer, num_steps=8)
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0
