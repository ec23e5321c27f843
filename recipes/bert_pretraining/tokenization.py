"""Text to token ids: a WordPiece tokenizer of our own or a published one, and tokenized corpora."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_CHUNK_DOCUMENTS = 4096


def train_wordpiece(documents: Iterable[Sequence[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn a lower-case WordPiece vocabulary of at most `vocab_size` entries.

    The same text gives the same vocabulary. Left alone, the trainer numbers the letters that
    continue a word in the order of a hash table, which differs between processes, and breaks ties
    by these numbers. So the letters are given to it as special tokens, numbered in order, and the
    vocabulary is then put into a tokenizer in which they are not special.
    """
    sentences = list(chain.from_iterable(documents))
    tokenizer = _wordpiece({})
    normalize = tokenizer.normalizer.normalize_str
    letters = sorted(set(chain.from_iterable(map(normalize, sentences))) - set(string.whitespace))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*_SPECIAL.values(), *(f"##{letter}" for letter in letters)],
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer_from_json(_wordpiece(tokenizer.get_vocab()).to_str())


def _wordpiece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def tokenizer_from_json(text: str) -> PreTrainedTokenizerFast:
    """The tokenizer whose `backend_tokenizer.to_str()` gave `text`.

    `BertTokenizerFast(vocab_file=...)` would do on transformers 4 and is ignored by 5; this form
    works on both.
    """
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **_SPECIAL)


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """A published tokenizer by name, or one that was saved in a folder.

    Raises:
        ValueError: if it lacks one of the tokens that BERT needs.
    """
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    missing = [name for name in _SPECIAL if getattr(tokenizer, name, None) is None]
    if missing:
        raise ValueError(
            f"data.tokenizer={name_or_path} has no {', '.join(missing)}: it is not a tokenizer "
            "for BERT. Name one that is, or leave it out to train one on the corpus."
        )
    return tokenizer


@dataclass(frozen=True)
class TokenizedCorpus:
    """Token ids of all documents in one array, without special tokens."""

    tokens: np.ndarray
    """[number of tokens], integer: the sentences one after another."""
    sentence_starts: np.ndarray
    """[number of sentences + 1]: where each begins in `tokens`, and where the last ends."""
    document_starts: np.ndarray
    """[number of documents + 1]: the first sentence of each, and the end of the last."""

    @property
    def num_documents(self) -> int:
        """The number of documents; one without a token counts too."""
        return len(self.document_starts) - 1

    def sentences_of(self, document: int) -> np.ndarray:
        """The starts of the sentences of one document, and the end of its last: [n + 1]."""
        first, last = self.document_starts[document : document + 2]
        return self.sentence_starts[first : last + 1]


def tokenize(
    documents: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase
) -> TokenizedCorpus:
    """Tokenize, on all cores, in chunks that bound the memory."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else it warns in DataLoader workers
    dtype = np.uint16 if len(tokenizer) <= np.iinfo(np.uint16).max else np.uint32
    arrays, lengths = [np.empty(0, dtype)], [np.zeros(1, np.int64)]
    remaining = iter(documents)
    while chunk := list(islice(remaining, _CHUNK_DOCUMENTS)):
        encoded = tokenizer(
            list(chain.from_iterable(chunk)),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        lengths.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        arrays.append(np.fromiter(chain.from_iterable(encoded), dtype, lengths[-1].sum()))
    counts = np.fromiter(map(len, documents), np.int64, len(documents))
    return TokenizedCorpus(
        tokens=np.concatenate(arrays),
        sentence_starts=np.cumsum(np.concatenate(lengths)),
        document_starts=np.concatenate([[0], np.cumsum(counts)]),
    )
