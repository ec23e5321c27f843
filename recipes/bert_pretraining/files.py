"""Documents from text files and from parquet, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_gaudi.data.text import sentences
from recipes.common.errors import UserError

_FORMATS = (".txt", ".parquet")
_EXPECTED = (
    "With data.source=path, name a text file (UTF-8, documents separated by blank lines), a "
    "*.parquet file with data.text_column, or a folder of *.txt or of *.parquet files."
)
_MAX_DOCUMENT_CHARACTERS = 16 * 2**20
_PROBED_BYTES = 2**16
_ROWS_AT_ONCE = 1024


def check(path: str, text_column: str) -> None:
    """Look at names, sizes and beginnings, but read no whole file.

    Raises:
        UserError: for files that are not there, empty, or cannot be read as `read` would.
    """
    found = _files(path)
    if not any(file.stat().st_size for file in found):
        raise UserError(f"data.path={path} is empty: there is no text in it.")
    for file in found:
        if file.suffix == ".parquet":
            _open_parquet(file, text_column).close()
    if found[0].suffix != ".parquet":
        _check_encoding(found[0])


def fingerprint(path: str) -> list[list[Any]]:
    """Name, size in bytes and time of change of every file, in the order of reading."""
    facts = ((file, file.stat()) for file in _files(path))
    return [[str(file.absolute()), info.st_size, info.st_mtime_ns] for file, info in facts]


def read(path: str, text_column: str) -> Iterator[list[str]]:
    """The documents of a file or a folder, each a list of sentences.

    Args:
        path: a text file, a parquet file, or a folder of either; folders are read in order of
            names, with the folders in them.
        text_column: of parquet files: the column in which each row holds a document.

    Raises:
        UserError: for a file that cannot be read, naming the place in it.
    """
    for file in _files(path):
        is_parquet = file.suffix == ".parquet"
        texts = _parquet_texts(file, text_column) if is_parquet else _blocks(file)
        for text in texts:
            if document := sentences(" ".join(text.split())):
                yield document


def _files(path: str) -> list[Path]:
    """The file, or those of the folder, of one format."""
    root = Path(path).expanduser()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise UserError(f"data.path={path} does not exist. {_EXPECTED}")
    found = {suffix: sorted(root.rglob(f"*{suffix}")) for suffix in _FORMATS}
    text, parquet = found.values()
    if text and parquet:
        raise UserError(
            f"data.path={path} holds {len(text)} *.txt and {len(parquet)} *.parquet files, and "
            "only one kind is read. Put them into folders of their own."
        )
    if not text and not parquet:
        raise UserError(f"data.path={path} is a folder without *.txt or *.parquet. {_EXPECTED}")
    return text or parquet


def _check_encoding(file: Path) -> None:
    """Refuse what is compressed, or no text at all, without reading all of it."""
    with file.open("rb") as stream:
        beginning = stream.read(_PROBED_BYTES)
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        # The end of what was read may have cut a character in two.
        if error.start < len(beginning) - 4 or len(beginning) < _PROBED_BYTES:
            raise _not_utf8(file, beginning[: error.start].count(b"\n") + 1, error) from error


def _not_utf8(file: Path, line: int, error: UnicodeDecodeError) -> UserError:
    byte = error.object[error.start]
    return UserError(
        f"data.path: {file} is not UTF-8 text: line {line} has the byte 0x{byte:02x}. Uncompress "
        f"it, or convert it, for example with: iconv -f latin1 -t utf-8 {file.name}"
    )


def _blocks(file: Path) -> Iterator[str]:
    """The paragraphs between blank lines."""
    block: list[str] = []
    num_characters = 0
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                line = raw.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise _not_utf8(file, number, error) from error
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


def _parquet_texts(file: Path, text_column: str) -> Iterator[str]:
    with _open_parquet(file, text_column) as table:
        try:
            for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[text_column]):
                yield from (text for text in batch.column(0).to_pylist() if text)
        except (OSError, ValueError) as error:  # pyarrow's own errors are these as well
            raise _corrupt(file, error) from error


def _open_parquet(file: Path, text_column: str) -> Any:
    """The file, if it is one and has such a column of text."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"data.path: {file} is read with the `pyarrow` package, which is not installed. "
            "Install it with: pip install 'lightning-gaudi[recipes]'"
        ) from error
    try:
        table = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:
        raise _corrupt(file, error) from error
    schema = table.schema_arrow
    if text_column not in schema.names:
        raise UserError(
            f"data.text_column={text_column} is not a column of {file}, which has "
            f"{', '.join(schema.names)}."
        )
    kind = schema.field(text_column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise UserError(f"data.text_column={text_column} of {file} holds {kind}, not text.")
    return table


def _corrupt(file: Path, error: Exception) -> UserError:
    return UserError(
        f"data.path: {file} cannot be read as parquet: {error}. Fetch it again, or take it out of "
        "the folder."
    )
