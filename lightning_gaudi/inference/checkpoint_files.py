"""The safetensors files of a saved model: what is in them, and a tensor of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Stored(NamedTuple):
    """A tensor in a file."""

    path: Path
    name: str
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, Stored]:
    """What the files of a folder hold, by name; the tensors are not read.

    Raises:
        ValueError: There are no safetensors files, one of the index is missing, or one cannot be
            read, such as one that is truncated.
    """
    found: dict[str, Stored] = {}
    for path in _paths(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = Stored(path, name, tuple(file.get_slice(name).get_shape()))
    for name, file_name in _index(folder).items():
        if name not in found:
            raise ValueError(
                f"{folder / _INDEX} says that {name} is in {file_name}, which does not have it. "
                "Get the files of the model again."
            )
    return found


def read_tensor(stored: Stored) -> Tensor:
    """A tensor on the CPU; its file is mapped until nobody holds it, and read where it is used."""
    with _opened(stored.path) as file:
        tensor: Tensor = file.get_tensor(stored.name)
    return tensor


def _paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder} to load a model from.")
    if names := sorted(set(_index(folder).values())):
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"{folder / _INDEX} names {len(names)} files, of which {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing. Get the files of the model again."
            )
        return [folder / name for name in names]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    raise ValueError(f"{folder} has no {_SINGLE} and no {_INDEX}.{_pickled(folder)}")


def _pickled(folder: Path) -> str:
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".pt")]
    if not pickled:
        return ""
    return (
        f" It has {pickled[0]}, a pickle, which may run code and cannot be read in parts. Convert "
        "it: from_pretrained(folder), then save_pretrained(other_folder)."
    )


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor, by name; empty if there is no index."""
    path = folder / _INDEX
    if not path.is_file():
        return {}
    try:
        weight_map: dict[str, str] = json.loads(path.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no index of safetensors files ({type(error).__name__}: {error}). Get the "
            "files of the model again."
        ) from error
    return weight_map


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read ({path.stat().st_size} bytes): {error}. It is truncated or no "
            "safetensors file; get it again."
        ) from error
