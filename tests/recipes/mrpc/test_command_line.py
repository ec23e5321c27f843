"""The command line: what a wrong setting says."""

from pathlib import Path

import pytest

import recipes.mrpc
from recipes.mrpc.__main__ import main

FOLDER = Path(recipes.mrpc.__file__).parent


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.slow_but("arguments4-no_such_setting", "arguments5-'embedded'")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.source=path"], "data.source=path needs data.path"),
        (["--data.source=path", "--data.path=/no/such"], "data.path=/no/such does not exist"),
        (["--data.tokenizer=nobody/none"], "data.tokenizer=nobody/none could not be loaded"),
        (["--model.name=nobody/none"], "model.name=nobody/none could not be loaded"),
        (["--data.no_such_setting=1"], "no_such_setting"),
        (["--data.source=disk"], "'embedded'"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["fit", "--config", str(FOLDER / "simulated.yaml"), *arguments])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_a_pretrained_model_without_its_vocabulary_is_one_clear_error(pretrained, capsys):
    arguments = [f"--model.name={pretrained}", "--data.vocab_size=3000"]
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(FOLDER / "simulated.yaml"), *arguments])
    error = capsys.readouterr().err
    assert f"model.name={pretrained} has embeddings for 300 tokens" in error
    assert "data.vocab_size=300" in error
