"""A corpus as token ids, in files that are mapped into memory: its size on disk may exceed it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_CHUNK_CHARACTERS = 2**20


@dataclass(frozen=True)
class TokenizedCorpus:
    """Token ids of all documents in one array, without special tokens."""

    tokens: np.ndarray
    """[number of tokens], uint16 or uint32: the sentences one after another."""
    sentence_starts: np.ndarray
    """[number of sentences + 1], int64: where each begins in `tokens`, and where the last ends."""
    document_starts: np.ndarray
    """[number of documents + 1], int64: the first sentence of each, and the end of the last."""
    folder: Path | None = None
    """Where the arrays are mapped from; None if they are in memory."""

    @classmethod
    def open(cls, folder: Path) -> TokenizedCorpus:
        """Map what `write_tokens` wrote; nothing is read yet."""
        return cls(*(open_array(folder, name) for name in _ARRAYS), folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process maps the files again, where pickling would copy all of them."""
        if self.folder is not None:
            return TokenizedCorpus.open, (self.folder,)
        return TokenizedCorpus, (self.tokens, self.sentence_starts, self.document_starts)

    @property
    def num_documents(self) -> int:
        """The number of documents; one without a token counts too."""
        return len(self.document_starts) - 1

    def sentences_of(self, document: int) -> np.ndarray:
        """The starts of the sentences of one document, and the end of its last: [n + 1]."""
        first, last = self.document_starts[document : document + 2]
        return self.sentence_starts[first : last + 1]


_ARRAYS = ("tokens", "sentence_starts", "document_starts")


def write_tokens(
    documents: Iterable[Sequence[str]], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Tokenize on all cores, a million characters at a time, into files of `folder`."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else it warns in DataLoader workers
    encode = _encoder(tokenizer)
    dtype = np.uint16 if len(tokenizer) <= np.iinfo(np.uint16).max + 1 else np.uint32
    num_tokens = num_sentences = 0
    with (
        ArrayWriter(folder, "tokens", dtype) as tokens,
        ArrayWriter(folder, "sentence_starts", np.int64) as sentence_starts,
        ArrayWriter(folder, "document_starts", np.int64) as document_starts,
    ):
        sentence_starts.append([0])
        document_starts.append([0])
        for chunk in _chunks(documents):
            encoded = encode(list(chain.from_iterable(chunk)))
            tokens.append(np.fromiter(chain.from_iterable(encoded), dtype))
            ends = num_tokens + np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
            sentence_starts.append(ends)
            num_tokens = int(ends[-1]) if len(ends) else num_tokens
            document_starts.append(num_sentences + np.cumsum([len(part) for part in chunk]))
            num_sentences += len(encoded)


def _chunks(documents: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    chunk: list[Sequence[str]] = []
    num_characters = 0
    for document in documents:
        chunk.append(document)
        num_characters += sum(map(len, document))
        if num_characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[Sequence[int]]]:
    """Sentences to ids, without special tokens and without a limit of length."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        # Straight from the backend: transformers copies every id three times on the way.
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_truncation()
        backend.no_padding()
        return lambda texts: [
            encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)
        ]
    return lambda texts: [
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts
    ]


class ArrayWriter:
    """Writes an array of one dimension to a file, piece by piece, for `open_array`.

    Args:
        folder: where.
        name: of the array; the file has its dtype as suffix.
        dtype: of its elements.
    """

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._file = (folder / f"{name}.{self._dtype.name}").open("wb")

    def append(self, values: Any) -> None:
        """Write these after what was written before."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


def open_array(folder: Path, name: str) -> np.ndarray:
    """Map the array that an `ArrayWriter` wrote: read-only, [number of elements]."""
    (path,) = folder.glob(f"{name}.*")
    dtype = np.dtype(path.suffix[1:])
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r")
