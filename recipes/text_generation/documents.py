"""Reads the documents to train on, and the rows whose beginnings are prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from recipes.common.errors import UserError
from recipes.common.hub import load_hub_dataset
from recipes.common.reader import Fields, Row, Table, files_by_split, open_tables

Source = Literal["embedded", "path", "hub"]
FIELDS = Fields(texts=("text",))
"""A document, or a prompt, in each row."""

_PROMPT_SPLITS = ("test", "validation", "train")
_HUB_SPLITS = {"test": "test", "validation": "validation", "valid": "validation", "train": "train"}


def check_source(
    source: Source, path: str | Sequence[str] | None, columns: Mapping[str, str] | None
) -> None:
    """Refuses sources that cannot be read, before anything expensive is started.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if source == "embedded":
        if path is not None or columns:
            name = "data.path" if path is not None else "data.columns"
            raise UserError(
                f"{name} is set, but data.source=embedded reads the documentation of Python. Set "
                "data.source=path for files, or data.source=hub for a data set by name."
            )
        return
    if path is None:
        wanted = "a file, or a folder of them." if source == "path" else "JulesBelveze/tldr_news."
        raise UserError(f"data.source={source} needs data.path: {wanted}")
    if source == "path":
        for table in open_tables(source, path, FIELDS, columns=columns).values():
            table.check()


def table_texts(tables: Mapping[str, Table], split: str, path: object) -> list[str]:
    """Returns the texts of a split that are not empty.

    Raises:
        UserError: for a split that is not there, or has no text, and for what is no text.
    """
    if split not in tables:
        raise UserError(
            f"data.path={path} has no {split} split, but only {', '.join(tables)}. Add its file."
        )
    if texts := [text for row in tables[split] if (text := row.text("text"))]:
        return texts
    raise UserError(f"data.path={path}: the {split} split has no row with text. Add rows.")


def prompt_rows(
    source: Source, path: str | Sequence[str], subset: str | None, columns: Mapping[str, str] | None
) -> tuple[str, Iterator[Row]]:
    """Returns the rows that prompts are made of: of the first split of test, validation and train.

    All of them, unlike in training, where a part is held out of what has only one split.

    Returns:
        The split, and its rows.

    Raises:
        UserError: for files or a data set that cannot be read, or have no such column.
    """
    if source == "path":
        tables = files_by_split(path)
        split = next(name for name in _PROMPT_SPLITS if name in tables)
        return split, iter(Table(tables[split], FIELDS, columns or {}))
    found = {_HUB_SPLITS.get(n, n): (n, rows) for n, rows in _splits(str(path), subset).items()}
    split = next((name for name in _PROMPT_SPLITS if name in found), next(iter(found)))
    name, rows = found[split]
    return split, iter(Table([(f"data.path={path}, {name}", rows)], FIELDS, columns or {}))


def _splits(path: str, subset: str | None) -> dict[str, object]:
    return dict(load_hub_dataset(path, subset, None))
