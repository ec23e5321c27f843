"""Reads articles and their summaries from files, from the hub, or from the embedded text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_gaudi.data import embedded_documents
from recipes.common.errors import UserError
from recipes.common.reader import Fields, Table
from recipes.t5_summarization.rouge import lead

Source = Literal["embedded", "path", "hub"]
MARK = "In short:"
"""Stands before the sentence of an embedded article that is its summary."""

FIELDS = Fields(texts=("article", "highlights"), optional=("id",))
"""As in CNN/DailyMail."""

_WORDS = range(4, 11)
_MAX_CHARACTERS = 60
_SENTENCES_PER_ARTICLE = 3
_HELD_OUT = 0.05


@dataclass(frozen=True)
class Row:
    """Holds an article with its summary, one highlight a line as in CNN/DailyMail."""

    id: str
    article: str
    highlights: str


def check_source(source: Source, path: str | Sequence[str] | None) -> None:
    """Refuses a source whose path is missing.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if source != "embedded" and path is None:
        wanted = "a file, or a folder of them." if source == "path" else "abisee/cnn_dailymail."
        raise UserError(f"data.source={source} needs data.path: {wanted}")


def read_rows(table: Table) -> Iterator[Row]:
    """Yields the rows of a split; one without an id is called by its number.

    Raises:
        UserError: for a file that cannot be read, or values that are no text.
    """
    for row in table:
        name = row.values["id"]
        yield Row(
            str(row.number if name in (None, "") else name),
            row.text("article"),
            row.text("highlights"),
        )


def embedded_rows(packages: Sequence[str], split: str, seed: int) -> Iterator[Row]:
    """Yields short articles whose summary is one of their sentences: extractive by construction.

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
    """Yields each window of sentences twice, with another one marked."""
    short = [s for s in document if len(s.split()) in _WORDS and len(s) <= _MAX_CHARACTERS]
    for start in range(0, len(short) - 1, _SENTENCES_PER_ARTICLE):
        window = short[start : start + _SENTENCES_PER_ARTICLE]
        for chosen in rng.sample(range(len(window)), min(2, len(window))):
            article = " ".join([*window[:chosen], MARK, *window[chosen:]])
            yield Row(f"{name}-{start}-{chosen}", article, window[chosen])


def marked(article: str) -> str:
    """Returns the sentence behind `In short:`, which is the trivial solution of the task."""
    return lead(article.partition(MARK)[2])
