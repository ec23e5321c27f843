import pickle
from itertools import pairwise

import numpy as np
import pytest

from recipes.bert_pretraining import tokenized
from recipes.bert_pretraining.tokenized import (
    ArrayWriter,
    TokenizedCorpus,
    open_array,
    write_tokens,
)
from recipes.common.tokenization import train_wordpiece

DOCUMENTS = [["The cat sleeps.", "It purrs."], [], ["The cat purrs."], ["\u200b"]]


def _tokenize(documents, tokenizer, folder) -> TokenizedCorpus:
    folder.mkdir(exist_ok=True)
    write_tokens(documents, tokenizer, folder)
    return TokenizedCorpus.open(folder)


def test_sentences_and_documents_are_found_again(tmp_path):
    tokenizer = train_wordpiece(DOCUMENTS, 100)
    corpus = _tokenize(iter(DOCUMENTS), tokenizer, tmp_path)
    texts = [tokenizer.decode(corpus.tokens[a:b]) for a, b in pairwise(corpus.sentences_of(0))]
    assert [text.replace(" .", ".") for text in texts] == ["the cat sleeps.", "it purrs."]
    assert corpus.num_documents == 4
    assert len(corpus.sentences_of(1)) == 1
    assert corpus.tokens.dtype == np.uint16


@pytest.mark.parametrize("num_characters", [1, 20])
def test_pieces_give_what_the_whole_gives(tmp_path, monkeypatch, num_characters):
    tokenizer = train_wordpiece(DOCUMENTS, 100)
    whole = _tokenize(DOCUMENTS, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(tokenized, "_CHUNK_CHARACTERS", num_characters)
    pieces = _tokenize(DOCUMENTS, tokenizer, tmp_path / "pieces")
    for name in ("tokens", "sentence_starts", "document_starts"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))


def test_ids_are_those_of_the_tokenizer_without_its_limits(tmp_path):
    tokenizer = train_wordpiece(DOCUMENTS, 100)
    tokenizer.model_max_length = 4
    tokenizer("The cat.", truncation=True, padding="max_length", max_length=4)
    sentence = "The cat sleeps. " * 20
    corpus = _tokenize([[sentence]], tokenizer, tmp_path)
    expected = tokenizer(sentence, add_special_tokens=False, verbose=False)["input_ids"]
    assert len(expected) > 80
    assert corpus.tokens.tolist() == expected


def test_a_tokenizer_without_a_backend_gives_the_same_ids(tmp_path):
    fast = train_wordpiece(DOCUMENTS, 100)

    class Slow:
        def __len__(self) -> int:
            return len(fast)

        def __call__(self, text, **options):
            return {"input_ids": fast(text, add_special_tokens=False)["input_ids"]}

    slow = _tokenize(DOCUMENTS, Slow(), tmp_path / "slow")
    expected = _tokenize(DOCUMENTS, fast, tmp_path / "fast")
    np.testing.assert_array_equal(slow.tokens, expected.tokens)


def test_a_pickled_corpus_holds_no_tokens(tmp_path):
    corpus = _tokenize(DOCUMENTS * 1000, train_wordpiece(DOCUMENTS, 100), tmp_path)
    data = pickle.dumps(corpus)
    assert len(data) < 500 < corpus.tokens.nbytes
    np.testing.assert_array_equal(pickle.loads(data).tokens, corpus.tokens)


def test_an_empty_array_can_be_written_and_opened(tmp_path):
    with ArrayWriter(tmp_path, "none", np.uint32):
        pass
    assert open_array(tmp_path, "none").dtype == np.uint32
    assert open_array(tmp_path, "none").shape == (0,)


def test_a_mapped_array_cannot_be_changed(tmp_path):
    with ArrayWriter(tmp_path, "some", np.int64) as writer:
        writer.append([1, 2])
        writer.append(np.array([3]))
    array = open_array(tmp_path, "some")
    assert array.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5
