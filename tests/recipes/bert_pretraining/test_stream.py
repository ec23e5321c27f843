"""Concatenated documents: rows without padding, as a slow reference makes them; several corpora."""

from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.several import open_corpora
from recipes.bert_pretraining.stream import StreamPlan, write_stream
from recipes.bert_pretraining.tokenized import TokenizedCorpus
from recipes.common.errors import UserError

CLS, SEP, T = 1, 2, 16


def _corpus(lengths: list[int]) -> TokenizedCorpus:
    """Documents of one sentence each, of tokens that occur once."""
    starts = np.cumsum([0, *lengths])
    tokens = np.arange(10, 10 + sum(lengths), dtype=np.uint16)
    return TokenizedCorpus(tokens, starts, np.arange(len(lengths) + 1))


def _plan(corpus: TokenizedCorpus, documents: list[int], limit: int | None, folder: Path):
    write_stream(corpus, np.array(documents), limit, folder, "train")
    return StreamPlan.open(corpus, folder, "train", T)


@pytest.mark.parametrize("limit", [None, T])
def test_rows_are_the_documents_one_after_another(limit: int | None, tmp_path: Path) -> None:
    lengths = [5, 40, 0, 1, 14, 15, 3, 3, 2, 30]
    corpus = _corpus(lengths)
    plan = _plan(corpus, [9, 0, 1, 2, 4, 5, 6, 8, 3], limit, tmp_path)
    wanted = []
    for number, begin in enumerate(np.cumsum([0, *lengths[:-1]])):
        text = corpus.tokens[begin : begin + lengths[number]].tolist()
        if number != 7 and text:  # it is in another split, or has no text
            wanted += [CLS, *text[: limit and limit - 2], SEP]
    assert len(plan) == len(wanted) // T
    rows = [plan.tokens(row, CLS, SEP).tolist() for row in range(len(plan))]
    assert list(chain.from_iterable(rows)) == wanted[: len(plan) * T]
    again = pickle.loads(pickle.dumps(plan))
    assert again.tokens(1, CLS, SEP).tolist() == rows[1]


def _text(path: Path, words: list[str], number: int) -> str:
    documents = (f"{words[i % len(words)]} {i} is here. So it is {i}." for i in range(number))
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return str(path)


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Two corpora."""
    words = (["apple", "pear", "plum"], ["stone", "brick", "steel"])
    return [_text(tmp_path / f"{i}.txt", each, 60) for i, each in enumerate(words)]


def _data(path: list[str], folder: Path, **settings: object) -> BertData:
    defaults = {"vocab_size": 120, "max_seq_length": 32, "batch_size": 4}
    data = BertData(
        "path",
        path,
        cache_dir=str(folder / "cache"),
        max_sequences_per_pack=1,
        validation_share=0.1,
        **{**defaults, **settings},
    )
    data.prepare_data()
    data.setup("fit")
    return data


def test_two_corpora_are_one_whose_rows_are_full(two: list[str], tmp_path: Path) -> None:
    data = _data(two, tmp_path, documents="concatenated", truncate_documents=True)
    assert data.tokenizer is not None
    rows = data.datasets["train"]
    text = ""
    for index in range(len(rows)):
        row = rows[0, index]
        assert row["num_tokens"] == 32
        assert row["num_sequences"] == 1
        assert (row["sequence_ids"] == 1).all()
        assert row["position_ids"].tolist() == list(range(32))
        assert not np.isin(row["masked_labels"], rows.vocabulary.special).any()
        ids = row["input_ids"].copy()
        labels = row["masked_labels"] >= 0
        ids[row["masked_positions"][labels]] = row["masked_labels"][labels]
        text += " " + data.tokenizer.decode(ids)
    assert "[PAD]" not in text
    assert text.index("apple") < text.index("stone")  # the order of the corpora is kept
    reference = data.unigram_reference("validation")
    assert 0 < reference.text_entropy < np.log(120)
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape == (4, 32)
    assert batch["expected_pairs"] == 4.0


def test_corpora_are_read_one_after_another_and_cut_together(two: list[str]) -> None:
    parts = [list(open_corpora("path", path)) for path in two]
    both = open_corpora("path", two)
    assert list(both) == parts[0] + parts[1]
    assert list(open_corpora("path", two, max_documents=70)) == (parts[0] + parts[1])[:70]
    assert both.name == "0-1"
    swapped = open_corpora("path", two[::-1])
    assert swapped.fingerprint != both.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset": [None, "x", "y"]}, "data.path names 2 corpora and data.subset 3: give one"),
        ({"path": []}, "data.path names 0 corpora"),
        (
            {"documents": "concatenated", "next_sentence": True, "max_seq_length": 64},
            "so there are no sentence pairs. Set data.next_sentence=false",
        ),
        (
            {"documents": "concatenated", "max_sequences_per_pack": 3},
            "data.max_sequences_per_pack=3, but with data.documents=concatenated",
        ),
        ({"truncate_documents": True}, "needs data.documents=concatenated"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, object], message: str, two: list[str]
) -> None:
    with pytest.raises(UserError, match=message):
        BertData("path", **{"path": two, **settings})


def test_one_corpus_that_is_missing_is_named(two: list[str]) -> None:
    with pytest.raises(UserError, match=r"data\.path=/no/such does not exist"):
        BertData("path", [two[0], "/no/such"])
