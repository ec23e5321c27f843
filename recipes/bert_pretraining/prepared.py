"""Makes token ids and planned rows of a corpus once; later runs read them from the cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lightning_gaudi.untrusted import parse_json
from recipes.bert_pretraining.cache import cached_folder
from recipes.bert_pretraining.corpora import Corpus
from recipes.bert_pretraining.rows import RowPlan, RowShape, write_plan
from recipes.bert_pretraining.sequences import sentence_pairs, single_sequences
from recipes.bert_pretraining.stream import StreamPlan, write_stream
from recipes.bert_pretraining.tokenized import TokenizedCorpus, write_tokens
from recipes.common.errors import UserError, first_line
from recipes.common.tokenization import tokenizer_from_state, tokenizer_state, train_wordpiece

Documents = Literal["separate", "concatenated"]
SPLITS = ("train", "validation", "test")
_FORMAT = 1  # raise it when the same settings would give other files
_TOKENIZER = "tokenizer.json"
_PACKAGES = ("lightning-gaudi", "tokenizers", "transformers", "datasets")


@dataclass(frozen=True)
class Settings:
    """Holds the settings that decide the rows, beside corpus and tokenizer; as in `BertData`."""

    vocab_size: int
    shape: RowShape
    next_sentence: bool
    validation_share: float
    seed: int
    documents: Documents = "separate"
    truncate_documents: bool = False


@dataclass(frozen=True)
class Prepared:
    """Holds what data sets are made of; it is memory-mapped, so that all processes share it."""

    tokenizer: PreTrainedTokenizerBase
    corpus: TokenizedCorpus
    plans: dict[str, RowPlan | StreamPlan]
    """By split."""


def prepare(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase | None, settings: Settings, root: Path
) -> Prepared:
    """Opens what an earlier call left in the cache, or does the work; many processes may do so.

    Args:
        corpus: the text.
        tokenizer: what tokenizes it; None trains WordPiece on the training documents.
        settings: sizes and seed.
        root: the cache.

    Raises:
        UserError: for a corpus without text or with too few documents.
        OSError: if the cache cannot be written.
    """
    share, seed = settings.validation_share, settings.seed
    key: dict[str, Any] = {
        "format": _FORMAT,
        "packages": {name: _version(name) for name in _PACKAGES},
        "corpus": corpus.fingerprint,
        "max_documents": corpus.max_documents,
        "tokenizer": [settings.vocab_size, share, seed] if tokenizer is None else _hash(tokenizer),
    }
    tokens = cached_folder(
        root, corpus.name, key, lambda folder: _write_tokens(corpus, tokenizer, settings, folder)
    )
    tokenized = TokenizedCorpus.open(tokens)
    if tokenizer is None:
        tokenizer = _read_tokenizer(tokens)
    shape, is_stream = settings.shape, settings.documents == "concatenated"
    sizes = [shape.max_seq_length, shape.max_sequences_per_pack, settings.next_sentence]
    if is_stream:
        sizes += [settings.documents, settings.truncate_documents]
    plans = cached_folder(
        root,
        f"{corpus.name}-rows",
        [key, share, seed, *sizes],
        lambda folder: _write_plans(tokenized, settings, folder),
    )
    if is_stream:
        length = shape.max_seq_length
        streams = {split: StreamPlan.open(tokenized, plans, split, length) for split in SPLITS}
        return Prepared(tokenizer, tokenized, {**streams})
    return Prepared(tokenizer, tokenized, {split: RowPlan.open(plans, split) for split in SPLITS})


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    try:
        return tokenizer_from_state(parse_json((folder / _TOKENIZER).read_bytes()))
    except ValueError as error:
        raise UserError(
            f"{folder / _TOKENIZER} is damaged: {first_line(error)} Remove {folder}: it is made "
            "again."
        ) from error


def _write_tokens(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase | None, settings: Settings, folder: Path
) -> None:
    if tokenizer is None:
        tokenizer = _train(corpus, settings)
        text = json.dumps(tokenizer_state(tokenizer))
        (folder / _TOKENIZER).write_text(text, encoding="utf-8")
    write_tokens(corpus, tokenizer, folder)
    num_documents = TokenizedCorpus.open(folder).num_documents
    _check_number(corpus, num_documents, settings.validation_share)


def _train(corpus: Corpus, settings: Settings) -> PreTrainedTokenizerFast:
    """Returns a vocabulary of the training documents only; the corpus is read, not kept."""
    num_documents = sum(1 for _ in corpus)
    _check_number(corpus, num_documents, settings.validation_share)
    chosen = np.zeros(num_documents, bool)
    chosen[_split(num_documents, settings.validation_share, settings.seed)[0]] = True
    return train_wordpiece(_Chosen(corpus, chosen), settings.vocab_size)


@dataclass(frozen=True)
class _Chosen:
    """Iterates over some of the documents of a corpus."""

    corpus: Corpus
    is_chosen: np.ndarray

    def __iter__(self) -> Iterator[Sequence[str]]:
        return compress(self.corpus, self.is_chosen)


def _check_number(corpus: Corpus, num_documents: int, validation_share: float) -> None:
    if not num_documents:
        raise UserError(f"The corpus {corpus.name!r} is empty: there is no text in it.")
    held_out = _num_held_out(num_documents, validation_share)
    if num_documents <= 2 * held_out:
        raise UserError(
            f"The corpus {corpus.name!r} has {num_documents} document(s), too few to hold out "
            f"{held_out} for validation and as many for test. Separate documents by blank lines, "
            "or set a smaller data.validation_share."
        )


def _num_held_out(num_documents: int, validation_share: float) -> int:
    return max(1, round(validation_share * num_documents))


def _split(num_documents: int, validation_share: float, seed: int) -> tuple[np.ndarray, ...]:
    """Returns indices of training, validation and test documents, always the same random ones."""
    held_out = _num_held_out(num_documents, validation_share)
    order = np.random.default_rng(seed).permutation(num_documents)
    return order[2 * held_out :], order[:held_out], order[held_out : 2 * held_out]


def _write_plans(corpus: TokenizedCorpus, settings: Settings, folder: Path) -> None:
    length, next_sentence = settings.shape.max_seq_length, settings.next_sentence
    parts = _split(corpus.num_documents, settings.validation_share, settings.seed)
    for number, (split, documents) in enumerate(zip(SPLITS, parts, strict=True)):
        if settings.documents == "concatenated":
            write_stream(
                corpus, documents, length if settings.truncate_documents else None, folder, split
            )
            continue
        # Each split draws on its own, so that more training text does not change validation pairs.
        rng = np.random.default_rng((settings.seed, number))
        sequences = (
            sentence_pairs(corpus, documents, length, rng)
            if next_sentence
            else single_sequences(corpus, documents, length)
        )
        write_plan(sequences, settings.shape, next_sentence, folder, split)


def _hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the hash of everything that decides which tokens a text becomes."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        text = tokenizer.backend_tokenizer.to_str()
    else:
        facts = (type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.init_kwargs)
        text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
