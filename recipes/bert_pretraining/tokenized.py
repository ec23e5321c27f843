"""A corpus as token ids, in files that are mapped into memory: its size on disk may exceed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from recipes.common.errors import UserError
from recipes.common.tokenization import use_all_cores

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
        """Maps what `write_tokens` wrote; of the arrays only the ends are read yet.

        Raises:
            UserError: The arrays are no token ids, or do not belong together.
        """
        tokens = open_array(folder, "tokens", _TOKEN_DTYPES)
        sentences, documents = (open_array(folder, name, _STARTS) for name in _ARRAYS[1:])
        check_starts(sentences, len(tokens), folder, "sentence_starts")
        check_starts(documents, len(sentences) - 1, folder, "document_starts")
        return cls(tokens, sentences, documents, folder)

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
        """Returns the starts of the sentences of one document, and the end of its last: [n + 1]."""
        first, last = self.document_starts[document : document + 2]
        if not 0 <= first <= last < len(self.sentence_starts):
            raise damaged(self.folder, f"document {document} has the sentences {first} to {last}")
        return self.sentence_starts[first : last + 1]

    def text(self, start: int, stop: int) -> np.ndarray:
        """Returns the tokens of a range that a file of the cache names.

        Raises:
            UserError: There is no such range.
        """
        if not 0 <= start <= stop <= len(self.tokens):
            raise damaged(
                self.folder, f"it asks for the tokens {start} to {stop} of {len(self.tokens)}"
            )
        return self.tokens[start:stop]


_ARRAYS = ("tokens", "sentence_starts", "document_starts")
_TOKEN_DTYPES = ("uint16", "uint32")
_STARTS = ("int64",)


def write_tokens(
    documents: Iterable[Sequence[str]], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Tokenizes on all cores, a million characters at a time, into files of `folder`."""
    use_all_cores()
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
        """Writes these after what was written before."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


def open_array(
    folder: Path, name: str, dtypes: Sequence[str] = ("uint16", "uint32", "int64")
) -> np.ndarray:
    """Maps the array that an `ArrayWriter` wrote: read-only, [number of elements].

    Args:
        folder: where.
        name: of the array.
        dtypes: which it may have; of no others is there a file of ours.

    Raises:
        UserError: There is none of these, there are several, or one is no such array.
    """
    paths = [path for dtype in dtypes if (path := folder / f"{name}.{dtype}").exists()]
    if len(paths) != 1:
        raise damaged(folder, f"it has {len(paths)} files of {name}, not one")
    dtype = np.dtype(paths[0].suffix[1:])
    if not paths[0].is_file() or paths[0].stat().st_size % dtype.itemsize:
        raise damaged(folder, f"{paths[0].name} is no file of whole numbers of {dtype}")
    if paths[0].stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(paths[0], dtype, "r")


def check_starts(starts: np.ndarray, end: int, folder: Path | None, name: str) -> None:
    """Checks that starts begin with 0 and end where the array ends that they lead into.

    Raises:
        UserError: They do not.
    """
    found = [int(starts[0]), int(starts[-1])] if len(starts) else []
    if found != [0, end]:
        raise damaged(folder, f"{name} should go from 0 to {end}, but has the ends {found}")


def damaged(folder: Path | None, reason: str) -> UserError:
    """Returns the error of a cache that says what cannot be."""
    return UserError(
        f"The prepared data in {folder or 'memory'} are damaged: {reason}. Remove that folder, and "
        "they are made again."
    )
