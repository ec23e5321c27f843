"""Where the text comes from: documents, each a list of sentences, read one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lightning_gaudi.data import embedded_documents, embedded_fingerprint
from lightning_gaudi.data.text import sentences
from recipes.bert_pretraining import files
from recipes.common.errors import UserError
from recipes.common.hub import load_hub_dataset

Source = Literal["embedded", "path", "hub"]


@dataclass(frozen=True)
class Corpus:
    """Documents that are read anew, and in the same order, each time they are iterated over.

    No more than a few are in memory at once, so a corpus may be larger than that.
    """

    name: str
    """How messages and the cache call it."""
    fingerprint: Any
    """What decides the text, as JSON would take it: names, sizes, versions."""
    read: Callable[[], Iterator[list[str]]]
    """Reads it from the beginning."""
    max_documents: int | None = None
    """Stop after so many; None for all."""

    def __iter__(self) -> Iterator[list[str]]:
        return islice(self.read(), self.max_documents)


def check_source(
    source: Source,
    path: str | None,
    *,
    packages: Sequence[str] = (),
    text_column: str = "text",
    max_documents: int | None = None,
) -> None:
    """Refuse a corpus that cannot exist, before anything expensive is started.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if max_documents is not None and max_documents < 1:
        raise UserError(f"data.max_documents={max_documents} leaves no text: set at least 3.")
    if source == "embedded":
        embedded_fingerprint(packages)
    elif path is None:
        kind = "a file of text or parquet, or a folder of them" if source == "path" else "a name"
        raise UserError(f"data.source={source} needs data.path: {kind}.")
    elif source == "path":
        files.check(path, text_column)


def open_corpus(
    source: Source,
    path: str | None = None,
    *,
    packages: Sequence[str] = ("torch",),
    subset: str | None = None,
    text_column: str = "text",
    max_documents: int | None = None,
) -> Corpus:
    """Find the corpus; read nothing of it yet.

    Args:
        source: "embedded" (documentation of Python and of `packages`), "path" (files) or "hub" (a
            data set by name, for example `wikimedia/wikipedia`).
        path: the file, the folder, or the name of the data set.
        packages: installed packages whose documentation is read, for "embedded".
        subset: configuration of the data set, for "hub".
        text_column: the column that holds a document, for parquet and "hub".
        max_documents: stop after so many; None for all.

    Raises:
        UserError: if there is no such corpus or no such column in it.
    """
    check_source(
        source, path, packages=packages, text_column=text_column, max_documents=max_documents
    )
    if source == "embedded":
        key, read = embedded_fingerprint(packages), lambda: iter(embedded_documents(packages))
        return Corpus("embedded", [source, key], read, max_documents)
    if source == "path":
        found, read = files.fingerprint(str(path)), lambda: files.read(str(path), text_column)
        return Corpus(Path(str(path)).stem, [source, found, text_column], read, max_documents)
    rows = load_hub_dataset(str(path), subset, "train", [text_column])
    key = [source, str(path), subset, text_column, rows._fingerprint]
    return Corpus(str(path), key, lambda: _of_rows(rows, str(path), text_column), max_documents)


def _of_rows(rows: Any, name: str, text_column: str) -> Iterator[list[str]]:
    for number, row in enumerate(rows.select_columns([text_column])):
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"data.text_column={text_column} of {name} is not text: row {number} holds "
                f"{type(text).__name__}. Name a column of text."
            )
        if document := sentences(" ".join((text or "").split())):
            yield document
