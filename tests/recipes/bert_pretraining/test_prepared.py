import json
import multiprocessing
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes.bert_pretraining import prepared
from recipes.bert_pretraining.corpora import open_corpus
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.prepared import Settings, prepare
from recipes.bert_pretraining.rows import RowShape
from recipes.common.tokenization import train_wordpiece
from tests.helpers.forked import fork_python

NO_CARD = {"LIGHTNING_GAUDI_SIMULATE": None}
SETTINGS = Settings(120, RowShape(48, 8, 4), False, 0.1, seed=0)


@pytest.fixture
def text(corpus):
    """The corpus of all tests here: 80 documents."""
    return open_corpus("path", str(corpus))


def _folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_documents_are_held_out_whole(text, tmp_path):
    result = prepare(text, None, SETTINGS, tmp_path)
    parts = [set(plan.sequences[:, 4].tolist()) for plan in result.plans.values()]
    assert [len(part) for part in parts] == [64, 8, 8]
    assert len(set.union(*parts)) == 80


def test_the_vocabulary_is_that_of_the_training_documents(text, tmp_path):
    result = prepare(text, None, SETTINGS, tmp_path)
    documents = list(text)
    chosen = sorted(set(result.plans["train"].sequences[:, 4].tolist()))
    expected = train_wordpiece([documents[i] for i in chosen], 120)
    assert result.tokenizer.get_vocab() == expected.get_vocab()


def test_the_second_call_reads_no_document(text, tmp_path):
    first = prepare(text, None, SETTINGS, tmp_path)

    def read():
        raise AssertionError("read again")

    second = prepare(replace(text, read=read), None, SETTINGS, tmp_path)
    np.testing.assert_array_equal(first.corpus.tokens, second.corpus.tokens)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    for split, plan in first.plans.items():
        np.testing.assert_array_equal(plan.sequences, second.plans[split].sequences)


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({"vocab_size": 100}, 2),
        ({"seed": 1}, 2),
        ({"validation_share": 0.2}, 2),
        ({"next_sentence": True}, 1),
        ({"shape": RowShape(64, 12, 4)}, 1),
        ({"shape": RowShape(48, 8, 2)}, 1),
        ({"shape": RowShape(48, 9, 4)}, 0),
    ],
    ids=str,
)
def test_what_decides_the_content_decides_the_folder(text, tmp_path, change, is_new):
    prepare(text, None, SETTINGS, tmp_path)
    before = _folders(tmp_path)
    prepare(text, None, replace(SETTINGS, **change), tmp_path)
    assert len(_folders(tmp_path) - before) == is_new


def test_another_text_another_tokenizer_and_other_packages_are_other_folders(
    text, tmp_path, monkeypatch
):
    names = []
    for corpus, tokenizer in (
        (text, None),
        (replace(text, fingerprint="changed"), None),
        (replace(text, max_documents=40), None),
        (text, train_wordpiece(text, 100)),
        (text, train_wordpiece(text, 90)),
    ):
        prepare(corpus, tokenizer, SETTINGS, tmp_path)
        names.append(len(_folders(tmp_path)))
    monkeypatch.setattr(prepared, "_version", lambda package: "2.0")
    prepare(text, None, SETTINGS, tmp_path)
    names.append(len(_folders(tmp_path)))
    assert names == [2, 4, 6, 8, 10, 12]


def test_with_a_tokenizer_the_split_does_not_change_the_tokens(text, tmp_path):
    tokenizer = train_wordpiece(text, 100)
    prepare(text, tokenizer, SETTINGS, tmp_path)
    prepare(text, tokenizer, replace(SETTINGS, seed=1, validation_share=0.2), tmp_path)
    assert len(list(tmp_path.glob("*/tokens.*"))) == 1


def test_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    corpus = open_corpus("path", str(tmp_path))
    for tokenizer in (None, train_wordpiece([["Some text."]], 50)):
        with pytest.raises(ValueError, match=r"The corpus .* is empty: there is no text in it"):
            prepare(corpus, tokenizer, SETTINGS, tmp_path / "cache")


def test_too_few_documents_are_refused(tmp_path):
    (tmp_path / "two.txt").write_text("One document.\n\nAnother document.")
    corpus = open_corpus("path", str(tmp_path))
    with pytest.raises(ValueError, match=r"has 2 document\(s\), too few to hold out 1.*blank line"):
        prepare(corpus, None, SETTINGS, tmp_path / "cache")


def _files(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_another_process_makes_the_same_files(corpus, tmp_path):
    settings = {"path": str(corpus), "vocab_size": 150, "next_sentence": True}
    source = f"""
        from recipes.bert_pretraining.data import BertData
        BertData("path", cache_dir={str(tmp_path / "there")!r}, **{settings}).prepare_data()
    """
    fork_python(source, env=NO_CARD)
    BertData("path", cache_dir=str(tmp_path / "here"), **settings).prepare_data()
    here, there = _files(tmp_path / "here"), _files(tmp_path / "there")
    assert len(here) > 15
    assert here == there
    (vocabulary,) = (content for path, content in here.items() if path.endswith("tokenizer.json"))
    assert len(json.loads(json.loads(vocabulary)["tokenizer"])["model"]["vocab"]) == 150


def _batches(settings: dict, queue) -> None:
    data = BertData(**settings)
    data.setup("fit")  # nothing was prepared: as on a node where prepare_data did not run
    queue.put([batch["input_ids"].numpy() for batch in data.train_dataloader()])


@pytest.mark.slow
def test_eight_ranks_that_start_together_get_the_same_data(make_data, tmp_path, monkeypatch):
    # The threads that the tokenizer has started here are missing in forked processes.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    settings = dict(make_data().hparams) | {"cache_dir": str(tmp_path), "next_sentence": True}
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=_batches, args=(settings, queue)) for _ in range(8)]
    for rank in ranks:
        rank.start()
    try:
        results = [queue.get(timeout=60) for _ in ranks]
    finally:
        for rank in ranks:
            rank.terminate()
            rank.join(60)
    expected = [b["input_ids"].numpy() for b in make_data(next_sentence=True).train_dataloader()]
    for batches in results:
        np.testing.assert_array_equal(batches, expected)
    assert len(_folders(tmp_path)) == 2


def test_a_data_set_is_small_when_it_is_sent_to_a_worker(make_data):
    dataset = make_data(next_sentence=True).datasets["train"]
    content = pickle.dumps(dataset)
    assert len(content) < 2500  # its random tokens are most of it
    again = pickle.loads(content)
    for index in range(len(dataset)):
        for name, value in dataset[3, index].items():
            np.testing.assert_array_equal(again[3, index][name], value)
