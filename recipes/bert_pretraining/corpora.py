"""Finds the text: documents, each a list of sentences, which are read one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lightning_gaudi.data import embedded_documents, embedded_fingerprint
from lightning_gaudi.data.text import sentences
from recipes.bert_pretraining import files
from recipes.common.errors import UserError
from recipes.common.hub import load_hub_dataset
from recipes.common.reader import Table

Source = Literal["embedded", "path", "hub"]


@dataclass(frozen=True)
class Corpus:
    """Holds documents that are read anew, in the same order, each time they are iterated over.

    No more than a few are in memory at once, so a corpus may be larger than that.
    """

    name: str
    """The name that messages and the cache have for it."""
    fingerprint: Any
    """Names, sizes and versions that decide the text, as JSON would take them."""
    read: Callable[[], Iterator[list[str]]]
    """Reads it from the beginning."""
    max_documents: int | None = None
    """Reading stops after so many; None reads all."""

    def __iter__(self) -> Iterator[list[str]]:
        return islice(self.read(), self.max_documents)


def check_source(
    source: Source,
    path: str | None,
    *,
    packages: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    max_documents: int | None = None,
) -> None:
    """Refuses a corpus that cannot exist, before anything expensive is started.

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
        files.check(path, columns or {})


def open_corpus(
    source: Source,
    path: str | None = None,
    *,
    packages: Sequence[str] = ("torch",),
    subset: str | None = None,
    columns: Mapping[str, str] | None = None,
    max_documents: int | None = None,
) -> Corpus:
    """Finds the corpus; reads nothing of it yet.

    Args:
        source: "embedded" (documentation of Python and of `packages`), "path" (files) or "hub" (a
            data set by name, for example `wikimedia/wikipedia`).
        path: the file, the folder, or the name of the data set.
        packages: installed packages whose documentation is read, for "embedded".
        subset: configuration of the data set, for "hub".
        columns: the user's name of the column `text`, a document in each row, of tables and "hub".
        max_documents: stop after so many; None for all.

    Raises:
        UserError: if there is no such corpus or no such column in it.
    """
    check_source(source, path, packages=packages, columns=columns, max_documents=max_documents)
    if source == "embedded":
        key, read = embedded_fingerprint(packages), lambda: iter(embedded_documents(packages))
        return Corpus("embedded", [source, key], read, max_documents)
    name, names = str(path), dict(columns or {})
    if source == "path":
        key = [source, files.fingerprint(name), sorted(names.items())]
        return Corpus(Path(name).stem, key, lambda: files.read(name, names), max_documents)
    rows = load_hub_dataset(name, subset, "train")
    key = [source, name, subset, sorted(names.items()), rows._fingerprint]
    table = Table([(f"data.path={name}", rows)], files.FIELDS, names)
    table.check()
    return Corpus(name, key, lambda: _documents(table), max_documents)


def _documents(table: Table) -> Iterator[list[str]]:
    for row in table:
        if document := sentences(" ".join(row.text("text").split())):
            yield document
