"""Reads one file of the user's as rows, by the `datasets` package, block by block without a cache.

| Suffix | Format |
|---|---|
| .csv | fields between commas, semicolons or tabs, quoted with `"` where need be; a header |
| .tsv, .txt | fields between tabs; quotation marks are characters like any other; a header |
| .jsonl, .json | an object a line, or one list of objects |
| .parquet | |
"""

from __future__ import annotations

import contextlib
import glob
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.common.errors import UserError
from recipes.common.file_diagnostics import check_rows, check_widths, csv_style, explain, header_of

SUFFIXES = (".tsv", ".txt", ".jsonl", ".json", ".csv", ".parquet")
"""The suffixes of files that hold tables."""

_DESCRIBES = ".json"
_ROWS_AT_ONCE = 1024
_UNREADABLE = (ValueError, OSError, TypeError, KeyError, RuntimeError, Warning)

Batch = Mapping[str, Sequence[Any]]
"""The values of some rows, by name of their column."""


def by_kind(files: Iterable[Path], suffixes: Sequence[str] = SUFFIXES) -> dict[str, list[Path]]:
    """Returns the files of each suffix, in the order of `suffixes`.

    A .json file beside files of another kind is left out: it describes them, as dataset_info.json.
    """
    found = [(file.suffix.lower(), file) for file in files]
    kinds = {kind: [file for suffix, file in found if suffix == kind] for kind in suffixes}
    kinds = {kind: members for kind, members in kinds.items() if members}
    return kinds if len(kinds) == 1 else {k: kinds[k] for k in kinds if k != _DESCRIBES}


def columns_of(file: Path) -> list[str]:
    """Returns the names of a file's columns.

    Raises:
        UserError: if it has none, or cannot be read.
    """
    if file.suffix.lower() in (".csv", ".tsv", ".txt"):
        return header_of(file)
    return list(next(batches(file), {}))


def batches(file: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Yields the rows of a table from the beginning, some at a time.

    Args:
        file: a file with one of `SUFFIXES`.
        columns: those that are wanted; there may be others. None for all.

    Raises:
        UserError: for a file without rows and one that is not what its suffix says, with the line.
    """
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv", ".txt"):
        return _delimited(file)
    if suffix == ".parquet":
        wanted = {} if columns is None else {"columns": list(columns)}
        return _stream(file, "from_parquet", batch_size=_ROWS_AT_ONCE, **wanted)
    return _objects(file)


def lines(file: Path) -> Iterator[str]:
    """Yields the lines of a text file in UTF-8, without their ends.

    Raises:
        UserError: if it is in another encoding, with the line.
    """
    for batch in _stream(file, "from_text", encoding="utf-8-sig", is_text=True):
        yield from batch["text"]


def _objects(file: Path) -> Iterator[Batch]:
    try:
        check_rows(file)
    except OSError as error:
        raise explain(file, error) from error
    yield from _stream(file, "from_json")


def _delimited(file: Path) -> Iterator[Batch]:
    """Yields all values as text, so that a label `01` or a sentence `NA` stays as it is written."""
    from datasets import Features, Value

    names = header_of(file)
    options = {"sep": csv_style(file)["delimiter"], "quoting": csv_style(file)["quoting"]}
    is_checked = False
    for batch in _stream(
        file,
        "from_csv",
        features=Features({name: Value("string") for name in names}),
        encoding="utf-8-sig",
        keep_default_na=False,
        index_col=False,
        **options,
    ):
        # pandas fills a row that is too short up with empty fields.
        if not is_checked and not all(batch[names[-1]]):
            check_widths(file)
            is_checked = True
        yield batch


def _stream(file: Path, method: str, is_text: bool = False, **options: Any) -> Iterator[Batch]:
    """Yields the batches of a reader of `datasets`, with errors that name the line."""
    is_empty = True
    try:
        with _quiet():
            rows = _open(method)(glob.escape(str(file.absolute())), options)
            # Otherwise it would make a dictionary of every row, and columns of these again.
            tables = iter(rows.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE))
        while (table := _next(tables)) is not None:
            is_empty = False
            yield {name: table[name].to_pylist() for name in table.column_names}
    except StopIteration:  # raised by datasets 5.2 for an empty file of JSON
        pass
    except _UNREADABLE as error:
        raise explain(file, error, is_text=is_text) from error
    if is_empty and not is_text:
        raise UserError(f"data.path={file} has no rows. Is it cut short?")


def _next(tables: Iterator[Any]) -> Any:
    """Returns the next table, or None; silences warnings only meanwhile, for the whole process."""
    with _quiet():
        return next(tables, None)


def _open(method: str) -> Callable[[str, Mapping[str, Any]], Any]:
    """Returns `Dataset.from_csv` or the like as a stream, which neither copies nor caches."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise UserError(
            "data.path is read with the `datasets` package, which is not installed. Install it "
            "with: pip install 'lightning-gaudi[recipes]'"
        ) from error

    def open_streaming(pattern: str, options: Mapping[str, Any]) -> Any:
        # It makes a folder and a lock for a cache, which streaming does not use.
        with tempfile.TemporaryDirectory() as unused:
            return getattr(Dataset, method)(pattern, cache_dir=unused, streaming=True, **options)

    return open_streaming


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves errors to `explain`, and makes one of fields that pandas would drop."""
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names does not match")
            yield
    finally:
        logger.setLevel(level)
