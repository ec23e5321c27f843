"""Where the text comes from: documents, each a list of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from lightning_gaudi.data import embedded_documents
from lightning_gaudi.data.text import sentences

Source = Literal["embedded", "path", "hub"]
Documents = list[list[str]]


def check_source(source: Source, path: str | None) -> None:
    """Refuse a corpus that cannot exist, before anything expensive is started.

    Raises:
        ValueError: naming the setting as it is typed.
    """
    if source == "embedded":
        return
    if path is None:
        raise ValueError(
            f"data.source={source} needs data.path: "
            + ("a text file or a folder of them." if source == "path" else "a data set's name.")
        )
    if source == "path" and not Path(path).expanduser().exists():
        raise ValueError(
            f"data.path={path} does not exist. With data.source=path, name a text file, or a "
            "folder with *.txt files: UTF-8, documents separated by blank lines."
        )


def load_documents(
    source: Source,
    path: str | None = None,
    *,
    packages: Sequence[str] = ("torch",),
    subset: str | None = None,
    text_column: str = "text",
    max_documents: int | None = None,
) -> Documents:
    """Read the corpus.

    Args:
        source: "embedded" (documentation of Python and of `packages`), "path" (text files) or
            "hub" (a data set by name, for example `wikimedia/wikipedia`).
        path: the text file, the folder, or the name of the data set.
        packages: installed packages whose documentation is read, for "embedded".
        subset: configuration of the data set, for "hub".
        text_column: the column that holds a document, for "hub".
        max_documents: stop after so many; None for all.

    Raises:
        ValueError: if there is no such corpus, no such column, or no text in it.
    """
    check_source(source, path)
    if source == "embedded":
        documents: Iterator[list[str]] = iter(embedded_documents(packages))
    elif source == "path":
        documents = _from_files(Path(str(path)).expanduser())
    else:
        documents = _from_hub(str(path), subset, text_column)
    result = list(islice(documents, max_documents))
    if not result:
        raise ValueError(f"data.source={source}, data.path={path}: there is no text in it.")
    return result


def _from_files(path: Path) -> Iterator[list[str]]:
    for file in sorted(path.rglob("*.txt")) if path.is_dir() else [path]:
        block: list[str] = []
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    block.append(line.strip())
                elif block:
                    yield sentences(" ".join(block))
                    block = []
        if block:
            yield sentences(" ".join(block))


def _from_hub(name: str, subset: str | None, text_column: str) -> Iterator[list[str]]:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"data.source=hub reads {name!r} with the `datasets` package, which is not installed. "
            "Install it with: pip install 'lightning-gaudi[recipes]'"
        ) from error
    try:
        split = datasets.load_dataset(name, subset, split="train")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"data.path={name} with data.subset={subset} could not be loaded: {error}. Check the "
            "name, the subset and the network, or take text files with data.source=path."
        ) from error
    if text_column not in split.column_names:
        raise ValueError(
            f"data.text_column={text_column} is not a column of {name!r}, which has "
            f"{', '.join(split.column_names)}."
        )
    for row in split:
        if document := sentences(" ".join(row[text_column].split())):
            yield document
