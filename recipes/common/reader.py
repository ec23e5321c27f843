"""Reads the user's own data: splits of rows with named columns, from files or from the hub.

In reading order: `reader` (which files, columns and splits), `tables` (one file),
`file_diagnostics` (lines for messages). All recipes use these, and decide what a row means.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from recipes.common.errors import UserError
from recipes.common.file_diagnostics import line_of
from recipes.common.hub import load_hub_dataset
from recipes.common.tables import SUFFIXES, Batch, batches, by_kind, columns_of

SPLITS = ("train", "validation", "test")

_SPLIT_NAME = re.compile(
    r"(?:.*[-_. ])?(train|training|validation|valid|val|dev|test)(?:[-_. ]\d+(?:[-_]of[-_]\d+)?)?",
    re.IGNORECASE,
)
_CALLED = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Fields:
    """Names what a recipe reads of a row."""

    texts: tuple[str, ...]
    """The texts that every row has, by which rows are held out."""
    others: tuple[str, ...] = ()
    """The values of any kind that every row has, except those of a test split."""
    optional: tuple[str, ...] = ()
    published: Sequence[Mapping[str, str]] = ()
    """Other names of the columns, under which the data are published."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names, which are the keys of `data.columns`."""
        return (*self.texts, *self.others, *self.optional)


@dataclass(frozen=True)
class Row:
    """Holds the values of a row by the recipe's names; a missing one is None."""

    values: Mapping[str, Any]
    columns: Mapping[str, str]
    """The user's names of the columns, by the recipe's."""
    source: Path | str
    """The file, or the name of the data set in messages."""
    number: int
    """The number of the row in its source, from 1."""

    @property
    def place(self) -> str:
        """The place of the row, as messages name it."""
        if isinstance(self.source, str):
            return f"{self.source}, row {self.number}"
        return f"data.path={self.source}, {line_of(self.source, self.number)}"

    def text(self, name: str) -> str:
        """Returns the text of that name, without white space around it; "" if there is none.

        Raises:
            UserError: if it is not text.
        """
        value = self.values[name]
        if value is not None and not isinstance(value, str):
            raise UserError(
                f"{self.place}: the column {self.columns[name]!r} holds {value!r:.40}, "
                f"{type(value).__name__}, not text. Name another column: data.columns."
                f"{name}=COLUMN, or write texts."
            )
        return (value or "").strip()

    def needed_text(self, name: str) -> str:
        """Returns the text of that name, which must not be empty.

        Raises:
            UserError: if there is none, or it is not text.
        """
        if text := self.text(name):
            return text
        raise UserError(
            f"{self.place}: the column {self.columns[name]!r} is empty. Complete the row or "
            "remove it."
        )


@dataclass(frozen=True)
class Table:
    """The rows of a split, which are read anew each time, since memory may not hold them all."""

    sources: Sequence[Path | tuple[str, Any]]
    """The files, or the name of a split of the hub with its rows."""
    fields: Fields
    columns: Mapping[str, str]
    """The setting `data.columns`, from the recipe's names to the user's."""
    is_test: bool = False
    share: tuple[int, float, float] | None = None
    """A seed and bounds, 0 to 1; only rows whose hash lies between the bounds belong to it."""

    def __iter__(self) -> Iterator[Row]:
        for source in self.sources:
            number = 0
            columns: dict[str, str] = {}
            for batch in self._batches(source):
                columns = columns or self._columns(source, list(batch))
                size = len(next(iter(batch.values())))
                for i in range(size):
                    values = {ours: batch[name][i] for ours, name in columns.items()}
                    values |= dict.fromkeys(set(self.fields.names) - set(values))
                    name = source if isinstance(source, Path) else source[0]
                    row = Row(values, columns, name, number + i + 1)
                    if self.share is None or self._is_in(row):
                        yield row
                number += size

    def check(self) -> None:
        """Checks the columns and the first rows, without reading a whole file.

        Raises:
            UserError: as reading would.
        """
        for source in self.sources:
            if isinstance(source, Path):
                self._columns(source, columns_of(source))
        first = next(iter(replace(self, share=None)), None)
        for name in self.fields.texts if first else ():
            first.text(name)

    def _batches(self, source: Path | tuple[str, Any]) -> Iterator[Batch]:
        if isinstance(source, Path):
            columns = self._columns(source, columns_of(source)).values()
            return batches(source, list(dict.fromkeys(columns)))
        columns = self._columns(source, source[1].column_names).values()
        rows = source[1].select_columns(list(dict.fromkeys(columns)))
        return rows.iter(batch_size=_ROWS_AT_ONCE)

    def _columns(self, source: Path | tuple[str, Any], found: Sequence[str]) -> dict[str, str]:
        """Returns the names in the file of the columns that it has, by the recipe's names."""
        fields = self.fields
        needed = fields.texts if self.is_test else (*fields.texts, *fields.others)
        own = {name: name for name in fields.names}
        layouts = [own | layout | self.columns for layout in ({}, *fields.published)]
        named = max(layouts, key=lambda names: sum(names[name] in found for name in needed))
        asked = [] if self.is_test else self.columns
        if missing := [n for n in fields.names if n in (*needed, *asked) and named[n] not in found]:
            origin = f"data.path={source}" if isinstance(source, Path) else source[0]
            raise UserError(_missing(origin, missing, named, found))
        return {ours: name for ours, name in named.items() if name in found}

    def _is_in(self, row: Row) -> bool:
        assert self.share is not None
        seed, start, stop = self.share
        names = self.fields.texts or self.fields.others
        texts = "\x1f".join(str(row.values[name]) for name in names)
        digest = hashlib.blake2b(f"{seed}\x1f{texts}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        # Training rows lie after those held out.
        return start <= place < stop


def open_tables(
    source: str,
    path: str | Sequence[str],
    fields: Fields,
    *,
    subset: str | None = None,
    columns: Mapping[str, str] | None = None,
    held_out_share: float = 0.05,
    seed: int = 0,
) -> dict[str, Table]:
    """Returns the splits of a data set; a missing validation or test split is held out of train.

    Whether a row is held out depends only on `seed` and on its texts. So rows that are added or
    change places leave the others where they are, and equal rows are in one split.

    Args:
        source: "path" (files) or "hub" (a data set by name).
        path: a file, several, or a folder; or the name of the data set.
        fields: what is read.
        subset: configuration of a data set of the hub.
        columns: `data.columns`, the user's names of fields.
        held_out_share: of the training rows, for each split that is missing.
        seed: of that choice.

    Raises:
        UserError: for files that are not there, of a kind that is not read, or without a column.
    """
    columns = dict(columns or {})
    for name in columns:
        if name not in fields.names:
            raise UserError(
                f"data.columns: {name!r} is none of {', '.join(fields.names)}."
                f"{_closest(name, fields.names)} Write the recipe's name before yours."
            )
    if source == "hub":
        parts: dict[str, list[Any]] = {}
        for name, rows in load_hub_dataset(str(path), subset, None).items():
            if found := _SPLIT_NAME.fullmatch(name):
                split = _CALLED.get(found[1], found[1])
                parts.setdefault(split, []).append((f"data.path={path}, {name}", rows))
    else:
        parts = dict(files_by_split(path))
    tables = {s: Table(parts[s], fields, columns, s == "test") for s in SPLITS if s in parts}
    missing = [split for split in SPLITS[1:] if split not in tables]
    if "train" in tables and missing:
        whole = tables["train"]
        for number, split in enumerate(missing):
            bounds = (number * held_out_share, (number + 1) * held_out_share)
            tables[split] = replace(whole, share=(seed, *bounds))
        tables["train"] = replace(whole, share=(seed, len(missing) * held_out_share, 1.0))
        rank_zero_info(
            f"data.path={path} has no {' and no '.join(missing)} split: {held_out_share:.0%} of "
            "the training rows are held out for each (data.validation_share, data.seed)."
        )
    return {split: tables[split] for split in SPLITS if split in tables}


def files_by_split(path: str | Sequence[str]) -> dict[str, list[Path]]:
    """Returns each split's files by name: `train.csv`, `dev.tsv`, `test-00000-of-00002.jsonl`.

    A file whose name does not tell belongs to train, unless names of others in the folder do.

    Raises:
        UserError: if there are none, or of several kinds.
    """
    paths = [path] if isinstance(path, str) else list(path)
    files = []
    for name in paths:
        file = Path(name).expanduser()
        if not file.exists():
            raise UserError(f"data.path={name} does not exist. {_EXPECTED}")
        files += _files_of_folder(file) if file.is_dir() else [file]
    if wrong := [file for file in files if file.suffix.lower() not in SUFFIXES]:
        raise UserError(f"data.path={wrong[0]} is of no kind that is read. {_EXPECTED}")
    splits: dict[str, list[Path]] = {}
    for file in files:
        found = _SPLIT_NAME.fullmatch(file.stem)
        split = found[1].lower() if found else "train"
        splits.setdefault(_CALLED.get(split, split), []).append(file)
    return splits


def _files_of_folder(folder: Path) -> list[Path]:
    """Returns the files of one kind, which is that of files named for splits, if there are any."""
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and not f.name.startswith(".")]
    tables = [file for file in files if file.suffix.lower() in SUFFIXES]
    named = [file for file in tables if _SPLIT_NAME.fullmatch(file.stem)]
    kinds = by_kind(named or tables)
    if not kinds:
        raise UserError(f"data.path={folder} is a folder without such files. {_EXPECTED}")
    if len(kinds) > 1 and not named:
        raise UserError(
            f"data.path={folder} holds files of several kinds, {', '.join(kinds)}, of which none "
            "is named for a split. Name the file, or put each kind into a folder of its own."
        )
    chosen = next(iter(kinds.values()))
    if left := [file.name for file in tables if file not in chosen]:
        names = ", ".join(file.name for file in chosen)
        rank_zero_info(f"data.path={folder}: {names} are read, and not {', '.join(left)}.")
    return chosen


def _missing(
    origin: str, missing: Sequence[str], named: Mapping[str, str], found: Sequence[str]
) -> str:
    wanted = ", ".join(repr(named[name]) for name in missing)
    return (
        f"{origin} has no column {wanted}. It has {', '.join(map(repr, found)) or 'none'}."
        f"{_closest(named[missing[0]], found)} Name yours: data.columns.{missing[0]}=COLUMN."
    )


def _closest(name: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(name, known, 1, 0.5)
    return f" Closest: {match[0]!r}." if match else ""


_EXPECTED = (
    "Name a file, several, or a folder of them: .csv, .tsv, .jsonl, .json or .parquet, with train, "
    "validation (or dev) and test in their names; what is missing is held out of train."
)
