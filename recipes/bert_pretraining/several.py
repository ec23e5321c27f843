"""Several corpora one after another, as one: Wikipedia and BookCorpus, for example."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from recipes.bert_pretraining.corpora import Corpus, Source, check_source, open_corpus
from recipes.common.errors import UserError

Names = list[str] | str | None
Subsets = list[str | None] | str | None


def check_sources(source: Source, path: Names, subset: Subsets, **settings: Any) -> None:
    """Refuses corpora that cannot exist; see `check_source`.

    Raises:
        UserError: for one of them, or for lists of different lengths.
    """
    for each, _ in _pairs(path, subset):
        check_source(source, each, **settings)


def open_corpora(
    source: Source,
    path: Names = None,
    *,
    subset: Subsets = None,
    max_documents: int | None = None,
    **settings: Any,
) -> Corpus:
    """Finds the corpora; reads nothing of them yet.

    Args:
        source: of all of them.
        path: one, or a list, which is read in its order.
        subset: one for each path, or one for all.
        max_documents: of all together.
        settings: of all of them; see `open_corpus`.

    Raises:
        UserError: if one does not exist, or the lists have different lengths.
    """
    parts = [
        open_corpus(source, each, subset=name, **settings) for each, name in _pairs(path, subset)
    ]
    if len(parts) == 1:
        (only,) = parts
        return Corpus(only.name, only.fingerprint, only.read, max_documents)
    return Corpus(
        "-".join(part.name for part in parts),
        [part.fingerprint for part in parts],
        lambda: chain.from_iterable(part.read() for part in parts),
        max_documents,
    )


def _pairs(path: Names, subset: Subsets) -> Sequence[tuple[str | None, str | None]]:
    """Returns each path and its subset."""
    paths: list[str] | list[None] = path if isinstance(path, list) else [path]  # type: ignore[list-item,assignment]
    subsets = subset if isinstance(subset, list) else [subset] * len(paths)
    if not paths or len(subsets) != len(paths):
        raise UserError(
            f"data.path names {len(paths)} corpora and data.subset {len(subsets)}: give one subset "
            "for each path, null where it has none, or one for all."
        )
    return list(zip(paths, subsets, strict=True))
