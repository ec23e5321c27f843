"""Sentence pairs from files in the formats in which MRPC is published, and from the hub.

| Layout | Files of a folder | Columns |
|---|---|---|
| GLUE | train.tsv, dev.tsv, test.tsv | Quality (test: index), #1 ID, #2 ID, #1 String, #2 String |
| MSR | msr_paraphrase_train.txt, msr_paraphrase_test.txt | the same, all with Quality |
| datasets | train, validation, test as .jsonl, .parquet or .csv | sentence1, sentence2, label |
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from recipes.common.errors import UserError
from recipes.common.hub import check_columns, load_hub_dataset


class Pair(NamedTuple):
    """Two sentences, and whether they say the same."""

    first: str
    second: str
    label: int | None
    """1 for a paraphrase, 0 for none, None if nobody has said."""


Splits = dict[str, list[Pair]]
"""The pairs of train, validation and test; what is not there is left out."""

_LAYOUTS: tuple[dict[str, str], ...] = (
    {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
    {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
    *(
        {split: f"{split}{suffix}" for split in ("train", "validation", "test")}
        for suffix in (".jsonl", ".parquet", ".csv")
    ),
)
_TSV_COLUMNS = ("#1 String", "#2 String", "Quality")
_COLUMNS = ("sentence1", "sentence2", "label")
_NO_LABEL = -1  # of the test splits of GLUE on the hub


def read_folder(path: str) -> Splits:
    """The pairs of a folder, in the first layout of which it has a file.

    Raises:
        UserError: if it has none, or a row is not what its format says; with file and row.
    """
    folder = Path(path).expanduser()
    for layout in _LAYOUTS:
        files = {split: folder / name for split, name in layout.items()}
        found = {split: file for split, file in files.items() if file.is_file()}
        if found:
            return {split: list(_read_file(file, split)) for split, file in found.items()}
    state = "has none of them" if folder.is_dir() else "is not a folder"
    raise UserError(
        f"data.path={path} {state}. With data.source=path, name a folder with the files of GLUE "
        "(train.tsv, dev.tsv, test.tsv), of MSR (msr_paraphrase_train.txt, "
        "msr_paraphrase_test.txt), or train, validation and test as .jsonl, .parquet or .csv with "
        "the columns sentence1, sentence2 and label."
    )


def read_hub(name: str, subset: str | None) -> Splits:
    """The pairs of a data set of the hub with MRPC's columns, such as `nyu-mll/glue` `mrpc`.

    Raises:
        UserError: if it cannot be had, or a row is not what it should be.
    """
    splits: Splits = {}
    for split in ("train", "validation", "test"):
        rows = load_hub_dataset(name, subset, split, _COLUMNS)
        splits[split] = list(_pairs(rows, _COLUMNS, split, f"data.path={name}, {split}"))
    return splits


def hold_out(splits: Splits, share: float, seed: int) -> None:
    """Move a share of the training pairs, drawn at random, to a validation split."""
    pairs = splits["train"]
    chosen = set(Random(seed).sample(range(len(pairs)), max(1, round(share * len(pairs)))))
    splits["train"] = [pair for i, pair in enumerate(pairs) if i not in chosen]
    splits["validation"] = [pairs[i] for i in sorted(chosen)]


def _read_file(file: Path, split: str) -> Iterator[Pair]:
    is_tsv = file.suffix in (".tsv", ".txt")
    columns = _TSV_COLUMNS if is_tsv else _COLUMNS
    try:
        rows = list(_ROWS[file.suffix](file))
    except UnicodeDecodeError as error:
        raise UserError(f"data.path={file} is not UTF-8: {error}. Convert it.") from error
    if not rows:
        raise UserError(f"data.path={file} has no rows. Is it cut short?")
    needed = columns[:2] if split == "test" else columns
    check_columns(f"data.path={file}", list(rows[0]), needed)
    return _pairs(rows, columns, split, f"data.path={file}")


def _pairs(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], split: str, origin: str
) -> Iterator[Pair]:
    """Check every row: a wrong one would be learnt."""
    for number, row in enumerate(rows, 1):
        first, second, label = (row.get(column) for column in columns)
        for column, text in zip(columns, (first, second), strict=False):
            if not isinstance(text, str) or not text.strip():
                raise UserError(
                    f"{origin}: {column!r} of row {number} is {text!r}, not a sentence. Remove "
                    "the row or complete it."
                )
        yield Pair(first.strip(), second.strip(), _label(label, split, f"{origin}, row {number}"))


def _label(value: Any, split: str, origin: str) -> int | None:
    if split == "test" and str(value) in ("None", str(_NO_LABEL)):
        return None
    if str(value) not in ("0", "1"):
        raise UserError(
            f"{origin}: the label is {value!r}. It must be 1 for a paraphrase, or 0; a test split "
            f"may have none, or {_NO_LABEL}."
        )
    return int(value)


def _rows_of_tsv(file: Path) -> Iterator[dict[str, str]]:
    """Quotation marks are characters like any other: MRPC's sentences have single ones."""
    return _rows_of_table(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _rows_of_table(file: Path, **options: Any) -> Iterator[dict[str, str]]:
    # utf-8-sig: the files of MSR begin with a byte order mark. newline="": they have CRLF.
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, **options)
        header = next(reader, [])
        for number, fields in enumerate(reader, 1):
            if len(fields) != len(header):
                raise UserError(
                    f"data.path={file}: row {number} has {len(fields)} columns, its header "
                    f"{len(header)}. Is it cut short, or has it been written with other quotes?"
                )
            yield dict(zip(header, fields, strict=True))


def _rows_of_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield dict(json.loads(line))
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"data.path={file}: line {number} is not a JSON object: {error}."
                ) from error


def _rows_of_parquet(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise UserError(
            f"data.path={file} is read with pyarrow, which is not installed. Install it with: "
            "pip install 'lightning-gaudi[recipes]'"
        ) from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except ArrowInvalid as error:
        raise UserError(f"data.path={file} is not a parquet file: {error}") from error
    return rows


_ROWS = {
    ".tsv": _rows_of_tsv,
    ".txt": _rows_of_tsv,
    ".csv": _rows_of_table,
    ".jsonl": _rows_of_jsonl,
    ".parquet": _rows_of_parquet,
}
