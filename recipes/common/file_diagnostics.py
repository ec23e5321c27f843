"""Finds where in a file something is wrong, in lines as an editor counts them.

The readers of `datasets` are fast and tell no lines, so these functions go through a file once
more. They check JSON before it is read, since the readers do not notice all that may be wrong
there, and other files when a message needs the line.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes.common.errors import UserError, first_line

_DELIMITERS = ",;\t"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def header_of(file: Path) -> list[str]:
    """Returns the names in the first line of a table between delimiters.

    Raises:
        UserError: if there is none, one comes twice, or it is not UTF-8.
    """
    try:
        _, names = next(_records(file), (0, []))
    except UnicodeDecodeError as error:
        raise _not_utf8(file) from error
    if not any(names):
        raise UserError(f"data.path={file} has no rows. Is it cut short?")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"data.path={file} has two columns {twice[0]!r}. Rename one of them.")
    return names


def csv_style(file: Path) -> dict[str, Any]:
    """Returns how the `csv` module reads a file, from its suffix and its header's separator."""
    if file.suffix.lower() != ".csv":
        return {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        first = lines.readline()
    return {"delimiter": max(_DELIMITERS, key=first.count), "quoting": csv.QUOTE_MINIMAL}


def line_of(file: Path, number: int) -> str:
    """Returns where a row (from 1) begins, as `line 17`; `row 17` if the file has no lines."""
    if file.suffix.lower() in (".csv", ".tsv", ".txt"):
        for count, (line, _) in enumerate(_records(file)):
            if count == number:  # counted from 0, since the header comes first
                return f"line {line}"
    elif file.suffix.lower() in (".jsonl", ".json") and not _is_list(file):
        with file.open("rb") as lines:
            full = (line for line, text in enumerate(lines, 1) if text.strip())
            return f"line {next(line for count, line in enumerate(full, 1) if count == number)}"
    return f"row {number}"


def check_widths(file: Path) -> None:
    """Refuses rows with more or fewer fields than the header.

    Raises:
        UserError: with the line.
    """
    records = _records(file)
    _, header = next(records)
    for line, fields in records:
        if len(fields) != len(header):
            raise UserError(
                f"data.path={file}, line {line} has {len(fields)} columns, its header "
                f"{len(header)}. Is it cut short, or has it been written with other quotes?"
            )


def check_rows(file: Path) -> None:
    """Refuses a JSON file whose rows are not objects, or whose columns mix kinds of values.

    `datasets` 5.2 would read mixed columns as JSON, so that texts get quotes that are not in the
    file. pyarrow 26.0.1 ends the process (SIGSEGV) at some rows that are not objects.

    Raises:
        UserError: with the line, or the number of the row in a list.
    """
    kinds: dict[str, tuple[type, str]] = {}
    try:
        for place, row in _json_rows(file):
            if not isinstance(row, dict):
                raise UserError(f"data.path={file}, {place} is not a JSON object, but {row!r:.40}.")
            _check_kinds(file, place, row, kinds)
    except UnicodeDecodeError as error:
        raise _not_utf8(file) from error


def explain(file: Path, error: Exception, is_text: bool = False) -> UserError:
    """Returns what is wrong with a file that could not be read.

    Args:
        file: which.
        error: of the library that read it.
        is_text: plain text, whatever its suffix.
    """
    if isinstance(error, UserError):
        return error
    suffix = file.suffix.lower()
    if not file.is_file():
        return UserError(f"data.path={file} does not exist.")
    if suffix != ".parquet" or is_text:
        try:
            _check_text(file, "" if is_text else suffix)
        except UnicodeDecodeError:
            return _not_utf8(file)
        except UserError as found:
            return found
    kind = "text" if is_text else suffix[1:]
    return UserError(
        f"data.path={file} cannot be read as {kind}: {first_line(error)} Fetch or write it again, "
        "or take it out of the folder."
    )


def _check_text(file: Path, suffix: str) -> None:
    """Raises for the first line that is not what the suffix says."""
    if suffix in (".csv", ".tsv", ".txt"):
        try:
            check_widths(file)
        except csv.Error as error:
            raise UserError(f"data.path={file} cannot be read as csv: {error}.") from error
        return
    with file.open(encoding="utf-8-sig") as lines:
        for _ in lines:
            pass


def _check_kinds(
    file: Path, place: str, row: dict[str, Any], kinds: dict[str, tuple[type, str]]
) -> None:
    """Refuses a row with a value of another kind than its column had before; notes new columns."""
    for name, value in row.items():
        # Whole numbers and others may stand in one column of numbers.
        kind = float if type(value) is int else type(value)
        known, first = kinds.get(name, (type(None), ""))
        if known is type(None):
            kinds[name] = kind, place
        elif kind not in (known, type(None)):
            raise UserError(
                f"data.path={file}, {place}: {name!r} is {value!r:.40}, {_kind_of(kind)}, but "
                f"{_kind_of(known)} in {first}. Write values of one kind."
            )


def _kind_of(kind: type) -> str:
    return {float: "a number", str: "a text", bool: "a truth value"}.get(kind, f"a {kind.__name__}")


def _json_rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields the rows of a list, or of a file with one a line, and where each is."""
    with file.open(encoding="utf-8-sig") as lines:
        if _is_list(file) and file.suffix.lower() == ".json":
            text = lines.read()
            try:
                rows = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UserError(f"data.path={file} is not JSON: {error}. Correct it.") from error
            yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
            return
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"data.path={file}, line {number} is not a JSON object: {error}. Write one a "
                    "line."
                ) from error


def _records(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line where each record begins, and its fields; empty lines are no records."""
    csv.field_size_limit(sys.maxsize)  # an article may be longer than 128 KiB, the default
    # utf-8-sig: files of MSR and of spreadsheets begin with a byte order mark.
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, **csv_style(file))
        last = 0
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:  # raised by Python 3.10 for a NUL
                raise UserError(
                    f"data.path={file}, line {last + 1} is not in the form of a table: {error}. "
                    "Write it anew as UTF-8 text."
                ) from error
            # A field between quotes may have several lines.
            line, last = last + 1, reader.line_num
            if fields and fields != [""]:
                yield line, fields


def _is_list(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _not_utf8(file: Path) -> UserError:
    """Returns the error that names the line, and what to do."""
    with file.open("rb") as lines:
        if lines.read(2) in _UTF16:
            how = "it is UTF-16. Save it as UTF-8"
            return UserError(f"data.path={file} is not UTF-8 text: {how}.")
        lines.seek(0)
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return UserError(
                    f"data.path={file} is not UTF-8 text: line {number} has the byte "
                    f"0x{line[error.start]:02x}. Uncompress it, or convert it, for example with: "
                    f"iconv -f latin1 -t utf-8 {file.name}"
                )
    return UserError(f"data.path={file} is not UTF-8 text. Convert it.")
