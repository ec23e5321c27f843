"""Reads the safetensors files of a saved model: their contents, and single tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lightning_gaudi.untrusted import parse_json, path_inside, printable

_MAX_INDEX_BYTES = 2**26
"""The largest index that is read; one of ten thousand tensors has a hundredth of this."""

_NUM_NAMES = 5
"""The most names that a message lists."""

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Stored(NamedTuple):
    """Says where a tensor is stored, and its shape."""

    path: Path
    name: str
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, Stored]:
    """Returns the tensors that the files of a folder hold, by name, without reading them.

    Raises:
        ValueError: There are no safetensors files, one that the index names is missing, or one
            cannot be read, for instance since it is truncated.
    """
    found: dict[str, Stored] = {}
    index = _index(folder)
    for path in _paths(folder, index):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = Stored(path, name, tuple(file.get_slice(name).get_shape()))
    for name, file_name in index.items():
        if name not in found or found[name].path != folder / file_name:
            raise ValueError(
                f"{printable(folder / _INDEX)} says that {printable(name)} is in "
                f"{printable(file_name)}, which does not have it. Get the files of the model again."
            )
    return found


def read_tensor(stored: Stored) -> Tensor:
    """Returns a CPU tensor. Its file is mapped as long as the tensor exists, and read when used."""
    with _opened(stored.path) as file:
        tensor: Tensor = file.get_tensor(stored.name)
    return tensor


def _paths(folder: Path, index: Mapping[str, str]) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"There is no folder {printable(folder)} to load a model from.")
    if names := sorted(set(index.values())):
        paths = [_inside(folder, name) for name in names]
        missing = [printable(path.name) for path in paths if not _is_file(path)]
        if missing:
            raise ValueError(
                f"{printable(folder / _INDEX)} names {len(names)} files, of which "
                f"{', '.join(missing[:_NUM_NAMES])} {'is' if len(missing) == 1 else 'are'} "
                "missing. Get the files of the model again."
            )
        return paths
    if (folder / _SINGLE).is_file():
        return [_inside(folder, _SINGLE)]
    raise ValueError(f"{printable(folder)} has no {_SINGLE} and no {_INDEX}.{_pickled(folder)}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as one whose name is too long
        return False


def _inside(folder: Path, name: str) -> Path:
    """Returns the path of a model's file, in the model's folder or in Hugging Face's cache.

    Raises:
        ValueError: The file is somewhere else.
    """
    try:
        return path_inside(folder, name)
    except ValueError as error:
        path = folder / name
        if not _is_cached(folder, name):
            raise ValueError(
                f"{error} It is not one of the model's files. Get the files of the model again."
            ) from None
        return path


def _is_cached(folder: Path, name: str) -> bool:
    """Returns whether a file is a link to a blob of the same model in Hugging Face's cache.

    models--<who>--<name>/snapshots/<revision>/model.safetensors -> ../../blobs/<hash>
    """
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        return False
    try:
        link = folder.resolve() / name
        target = Path(os.path.normpath(link.parent / link.readlink()))
        # The folder is a revision's, or lies within it.
        snapshots = next(each for each in link.parents[1:4] if each.name == "snapshots")
        is_blob = target.parent == snapshots.parent / "blobs" and _HASH.fullmatch(target.name)
        return bool(is_blob) and target.resolve() == target
    except (OSError, ValueError, StopIteration):
        return False


_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
"""The name of a blob: git's hash, or the SHA-256 of a large file."""


def _pickled(folder: Path) -> str:
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".pt")]
    if not pickled:
        return ""
    return (
        f" It has {printable(pickled[0])}, a pickle, which may run code and cannot be read in "
        "parts. Convert it: from_pretrained(folder), then save_pretrained(other_folder)."
    )


def _index(folder: Path) -> dict[str, str]:
    """Returns the file of each tensor, by name; empty if there is no index."""
    path = folder / _INDEX
    if not path.is_file():
        return {}
    try:
        with _inside(folder, _INDEX).open("rb") as file:
            data = file.read(_MAX_INDEX_BYTES + 1)
        if len(data) > _MAX_INDEX_BYTES:
            raise ValueError(f"it has more than {_MAX_INDEX_BYTES:,} bytes")
        found = parse_json(data)["weight_map"]
        if not isinstance(found, dict) or not all(
            isinstance(each, str) and each for each in found.values()
        ):
            raise TypeError("its weight_map does not say in which file each tensor is")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{printable(path)} is no index of safetensors files ({type(error).__name__}: "
            f"{printable(error)}). Get the files of the model again."
        ) from error
    weight_map: dict[str, str] = found
    return weight_map


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{printable(path)} is no file. Get the files of the model again.")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(
            f"{printable(path)} cannot be read ({path.stat().st_size} bytes): "
            f"{printable(error)}. It is truncated or no "
            "safetensors file; get it again."
        ) from error
