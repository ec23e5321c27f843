"""Reads documents from text files and from tables, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_gaudi.data.text import sentences
from recipes.common.errors import UserError
from recipes.common.reader import Fields, Table
from recipes.common.tables import by_kind, lines

FIELDS = Fields(texts=("text",))
"""The layout of tables: a document in each row."""

_TABLES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
_EXPECTED = (
    "With data.source=path, name a text file (UTF-8, documents separated by blank lines), a table "
    "(.parquet, .jsonl, .json, .csv or .tsv, a document in each row), or a folder of either."
)
_MAX_DOCUMENT_CHARACTERS = 16 * 2**20


def check(path: str, columns: Mapping[str, str]) -> None:
    """Looks at names, sizes and beginnings, but reads no whole file.

    Raises:
        UserError: for files that are not there, empty, or cannot be read as `read` would.
    """
    found = _files(path)
    if not any(file.stat().st_size for file in found):
        raise UserError(f"data.path={path} is empty: there is no text in it.")
    if found[0].suffix.lower() in _TABLES:
        Table(found, FIELDS, columns).check()
    else:
        next(lines(found[0]), None)


def fingerprint(path: str) -> list[list[Any]]:
    """Returns name, size in bytes and time of change of every file, in the order of reading."""
    facts = ((file, file.stat()) for file in _files(path))
    return [[str(file.absolute()), info.st_size, info.st_mtime_ns] for file, info in facts]


def read(path: str, columns: Mapping[str, str]) -> Iterator[list[str]]:
    """Yields the documents of a file or a folder, each a list of sentences.

    Args:
        path: a text file, a table, or a folder of either; folders are read in order of names, with
            the folders in them.
        columns: the user's name of the column `text`, of tables.

    Raises:
        UserError: for a file that cannot be read, naming the place in it.
    """
    for file in _files(path):
        if file.suffix.lower() in _TABLES:
            texts = (row.text("text") for row in Table([file], FIELDS, columns))
        else:
            texts = _blocks(file)
        for text in texts:
            if document := sentences(" ".join(text.split())):
                yield document


def _files(path: str) -> list[Path]:
    """Returns the file, or those of the folder, of one format."""
    root = Path(path).expanduser()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise UserError(f"data.path={path} does not exist. {_EXPECTED}")
    kinds = by_kind(sorted(f for f in root.rglob("*.*") if f.is_file()), (".txt", *_TABLES))
    if len(kinds) > 1:
        counts = " and ".join(f"{len(files)} *{suffix}" for suffix, files in kinds.items())
        raise UserError(
            f"data.path={path} holds {counts} files, and only one kind is read. Put them into "
            "folders of their own."
        )
    if not kinds:
        raise UserError(f"data.path={path} is a folder without text or tables. {_EXPECTED}")
    return next(iter(kinds.values()))


def _blocks(file: Path) -> Iterator[str]:
    """Yields the paragraphs between blank lines."""
    block: list[str] = []
    num_characters = 0
    for number, line in enumerate(map(str.strip, lines(file)), 1):
        if line:
            block.append(line)
            num_characters += len(line)
        elif block:
            yield " ".join(block)
            block, num_characters = [], 0
        if num_characters > _MAX_DOCUMENT_CHARACTERS:
            raise UserError(
                f"data.path: {file} has more than {_MAX_DOCUMENT_CHARACTERS:,} characters "
                f"without a blank line up to line {number}. Separate documents by blank lines."
            )
    if block:
        yield " ".join(block)
