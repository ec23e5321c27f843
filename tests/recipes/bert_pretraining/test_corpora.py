import json
import sys

import pytest

from recipes.bert_pretraining.corpora import open_corpus


def _datasets():
    try:
        import datasets
    except ImportError as error:  # not there, or not of this huggingface_hub
        pytest.skip(f"pip install lightning-gaudi[recipes]: {error}")
    return datasets


@pytest.fixture
def hub_data_set(tmp_path, monkeypatch) -> str:
    """A data set in a format of the hub's, on this disk."""
    datasets = _datasets()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data set"
    folder.mkdir()
    rows = [
        {"body": "The cat sleeps. It purrs.", "year": 1},
        {"body": " ", "year": 2},
        {"body": None, "year": 3},
        {"body": "The dog\nbarks.", "year": 4},
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_the_embedded_corpus_is_named_by_its_packages_and_read_again_each_time():
    corpus = open_corpus("embedded", packages=[], max_documents=3)
    assert list(corpus) == list(corpus)
    assert len(list(corpus)) == 3
    assert corpus.fingerprint != open_corpus("embedded", packages=["torch"]).fingerprint


def test_a_package_that_is_not_installed_is_refused_without_reading():
    with pytest.raises(ValueError, match="cannot read the package 'no_such_package'"):
        open_corpus("embedded", packages=["no_such_package"])


def test_a_data_set_of_the_hub_gives_its_documents_each_time(hub_data_set):
    corpus = open_corpus("hub", hub_data_set, columns={"text": "body"})
    expected = [["The cat sleeps.", "It purrs."], ["The dog barks."]]
    assert list(corpus) == expected
    assert list(corpus) == expected


def test_the_fingerprint_of_a_data_set_changes_with_it_only(hub_data_set, tmp_path):
    first, again = (open_corpus("hub", hub_data_set, columns={"text": "body"}) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    with (tmp_path / "data set" / "train.jsonl").open("a") as file:
        file.write('{"body": "One more.", "year": 5}\n')
    changed = open_corpus("hub", hub_data_set, columns={"text": "body"})
    assert changed.fingerprint != first.fingerprint


def test_a_column_that_is_not_there_is_refused(hub_data_set):
    with pytest.raises(ValueError, match=r"data\.path=.* has no column 'text'.*'body', 'year'"):
        open_corpus("hub", hub_data_set)


def test_a_column_that_is_no_text_is_refused(hub_data_set):
    with pytest.raises(ValueError, match=r"row 1: the column .year. holds 1, int, not text"):
        open_corpus("hub", hub_data_set, columns={"text": "year"})


def test_a_data_set_that_is_not_there_is_refused(tmp_path):
    _datasets()
    missing = str(tmp_path / "missing")
    expected = r"data\.path=.*missing with data\.subset=en could not be.*data\.source=path"
    with pytest.raises(ValueError, match=expected):
        open_corpus("hub", missing, subset="en")


def test_the_hub_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"'some/name'.*lightning-gaudi\[recipes\]"):
        open_corpus("hub", "some/name")
