"""Where articles and their summaries come from: files, the hub, or the embedded text."""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning_gaudi.data import embedded_documents
from recipes.common.errors import UserError
from recipes.common.hub import check_columns, load_hub_dataset
from recipes.t5_summarization.rouge import lead

Source = Literal["embedded", "path", "hub"]
SPLITS = ("train", "validation", "test")
MARK = "In short:"
"""Stands before the sentence of an embedded article that is its summary."""

_FORMATS = ("csv", "jsonl", "json", "parquet")
_WORDS = range(4, 11)
_MAX_CHARACTERS = 60
_SENTENCES_PER_ARTICLE = 3
_HELD_OUT = 0.05


@dataclass(frozen=True)
class Row:
    """An article with its summary, as in CNN/DailyMail: one highlight a line."""

    id: str
    article: str
    highlights: str


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are read."""

    article: str = "article"
    summary: str = "highlights"
    id: str = "id"

    def row(self, values: Mapping[str, Any], number: int) -> Row:
        """The row of that number; one without an id is called by its number."""
        article, summary = (values[name] or "" for name in (self.article, self.summary))
        return Row(str(values.get(self.id, number)), str(article).strip(), str(summary).strip())


def check_source(source: Source, path: str | None, columns: Columns) -> None:
    """Refuse data that cannot be had, before anything expensive is started.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if source == "embedded":
        return
    if path is None:
        wanted = "a folder with train, validation and test files"
        raise UserError(
            f"data.source={source} needs data.path: "
            + (f"{wanted}." if source == "path" else "a name, such as abisee/cnn_dailymail.")
        )
    if source == "path":
        folder = Path(path).expanduser()
        only_test = any(folder.glob("test*")) and not any(folder.glob("train*"))
        for split in ("test",) if only_test else ("train", "validation"):
            next(read_files(folder, split, columns), None)


def files_of(folder: Path, split: str) -> list[Path]:
    """The files of a split: `train.csv`, or the shards `train-00000-of-00003.parquet`.

    Raises:
        UserError: naming the folder, what it should hold, and how to get it.
    """
    found = [
        path
        for pattern in (f"{split}.*", f"{split}-*.*")
        for path in sorted(folder.glob(pattern))
        if path.suffix[1:] in _FORMATS
    ]
    if found:
        return found
    problem = "has no such file" if folder.is_dir() else "is not a folder"
    raise UserError(
        f"data.path={folder} {problem}: {split}.csv, {split}.jsonl, {split}.parquet or shards "
        f"{split}-*.parquet, with the columns article, highlights and id of CNN/DailyMail. Get "
        "them where there is a network with `hf download abisee/cnn_dailymail --repo-type dataset "
        "--include '3.0.0/*' --local-dir FOLDER`, and set data.path=FOLDER/3.0.0."
    )


def read_files(folder: Path, split: str, columns: Columns) -> Iterator[Row]:
    """The rows of a split, in the order of the files.

    Raises:
        UserError: for files that are missing, cannot be read, or lack a column.
    """
    number = 0
    for path in files_of(folder, split):
        try:
            for values in _READERS[path.suffix[1:]](path):
                if number == 0:
                    wanted = (columns.article, columns.summary)
                    check_columns(f"data.path={folder}: {path.name}", list(values), wanted)
                yield columns.row(values, number)
                number += 1
        except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
            raise UserError(
                f"{path} could not be read as {path.suffix[1:]} (row {number}): {error}. It must "
                "be UTF-8, and jsonl has one object a line."
            ) from error


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)  # an article is longer than the 128 KiB that are the default
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{path} is read with the `pyarrow` package, which is not installed. Install it with: "
            "pip install 'lightning-gaudi[recipes]'"
        ) from error
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


_READERS = {"csv": _csv, "jsonl": _jsonl, "json": _jsonl, "parquet": _parquet}


def read_hub(name: str, subset: str | None, split: str, columns: Columns) -> Iterator[Row]:
    """The rows of a split of a data set of the hub.

    Raises:
        UserError: if it cannot be had, or lacks a column.
    """
    table = load_hub_dataset(name, subset, split, (columns.article, columns.summary))
    for number, values in enumerate(table):
        yield columns.row(values, number)


def embedded_rows(packages: Sequence[str], split: str, seed: int) -> Iterator[Row]:
    """Short articles whose summary is one of their sentences: extractive by construction.

    An article is a few sentences that follow each other in the documentation of Python and of
    `packages`, and `In short:` stands before one of them. To find that sentence is trivial for
    a program, which scores 100; a model must learn from nothing to find it and to copy it.
    """
    documents = embedded_documents(packages)
    random.Random(seed).shuffle(documents)
    held_out = round(_HELD_OUT * len(documents))
    bounds = {"test": (0, held_out), "validation": (held_out, 2 * held_out)}
    start, stop = bounds.get(split, (2 * held_out, len(documents)))
    for number in range(start, stop):
        yield from _articles(
            documents[number], f"{split}-{number}", random.Random(f"{seed} {number}")
        )


def _articles(document: Sequence[str], name: str, rng: random.Random) -> Iterator[Row]:
    """Each window of sentences twice, with another one marked."""
    short = [s for s in document if len(s.split()) in _WORDS and len(s) <= _MAX_CHARACTERS]
    for start in range(0, len(short) - 1, _SENTENCES_PER_ARTICLE):
        window = short[start : start + _SENTENCES_PER_ARTICLE]
        for chosen in rng.sample(range(len(window)), min(2, len(window))):
            article = " ".join([*window[:chosen], MARK, *window[chosen:]])
            yield Row(f"{name}-{start}-{chosen}", article, window[chosen])


def marked(article: str) -> str:
    """The sentence behind `In short:`: the trivial solution of the embedded task."""
    return lead(article.partition(MARK)[2])
