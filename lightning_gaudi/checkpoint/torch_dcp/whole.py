"""Checks the metadata of a folder of shards: all that it names is in the folder, exactly once.

Torch allocates what the metadata claim, fills it with the chunks that they name, and leaves values
that no chunk covers uninitialized.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from lightning_gaudi.untrusted import path_inside, printable

_MAX_PAIRS = 2 * 10**6
"""How many pairs of chunks are compared; shards along one axis need no comparison."""

_MAX_DEPTH = 100
_MAX_DIMS = 64


def check_metadata(metadata: Metadata, folder: Path) -> None:
    """Checks everything that the metadata of a folder say before any value is read.

    Raises:
        ValueError: A file is missing, truncated or elsewhere; or a tensor is not covered by its
            chunks exactly. What is wrong is named.
    """
    stored, where = metadata.state_dict_metadata, metadata.storage_data
    _check(isinstance(stored, dict) and isinstance(where, dict), "it lists no values")
    _check_paths(metadata.planner_data, stored)
    parts = {_key(index): info for index, info in where.items()}
    _check(len(parts) == len(where), "it has two places for one part")
    _check_files(parts, folder)
    for name, each in stored.items():
        _check(isinstance(name, str), "a value has no name")
        if isinstance(each, BytesStorageMetadata):
            _check((name, None) in parts, f"{printable(name)} is nowhere")
        else:
            _check_tensor(name, each, parts)


def _check(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ValueError(problem)


def _key(index: Any) -> tuple[str, tuple[int, ...] | None]:
    """Returns the name and the offset that identify a part."""
    name, offset = getattr(index, "fqn", None), getattr(index, "offset", None)
    is_index = isinstance(index, MetadataIndex) and isinstance(name, str)
    _check(is_index and (offset is None or _is_size(offset)), "a part has no name or place")
    return str(name), None if offset is None else tuple(offset)


def _is_size(value: Any) -> bool:
    is_size = isinstance(value, torch.Size) and len(value) <= _MAX_DIMS
    return is_size and all(type(each) is int and 0 <= each < 2**48 for each in value)


def _check_paths(paths: Any, stored: Mapping[str, Any]) -> None:
    """Checks the paths of keys and positions that place values in dicts and lists."""
    _check(paths is None or isinstance(paths, dict), "it does not say where its values belong")
    leaves: set[tuple[Any, ...]] = set()
    inner: set[tuple[Any, ...]] = set()
    for key, path in (paths or {}).items():
        is_path = isinstance(path, tuple) and 0 < len(path) <= _MAX_DEPTH
        _check(key in stored and is_path and isinstance(path[0], str), "a value belongs nowhere")
        for each in path:
            # torch fills a list up to the position that it is given, so a large one would fill the
            # memory.
            is_place = type(each) is int and 0 <= each < len(paths)
            _check(is_place or isinstance(each, str), "a value belongs nowhere")
        leaves.add(path)
        inner.update(path[:length] for length in range(1, len(path)))
    is_tree = len(leaves) == len(paths or {}) and leaves.isdisjoint(inner)
    _check(is_tree, "two values belong to one place")


def _check_files(parts: Mapping[Any, Any], folder: Path) -> None:
    """Checks that all parts lie within files of the folder, and that no two share bytes."""
    files: dict[str, list[tuple[int, int]]] = {}
    for info in parts.values():
        name, begin, length = (
            getattr(info, each, None) for each in ("relative_path", "offset", "length")
        )
        counts = (type(each) is int and 0 <= each < 2**62 for each in (begin, length))
        _check(isinstance(name, str) and all(counts), "a part has no file or place")
        _check(
            # `Reader` reads the bytes as they are, and such a part would have to be decoded first.
            not getattr(info, "transform_descriptors", None),
            "a part was changed by an extension",
        )
        files.setdefault(str(name), []).append((int(begin or 0), int(length or 0)))
    paths = {name: path_inside(folder, name) for name in files}
    problems = [_file_problem(paths[name], files[name]) for name in sorted(files)]
    found = [each for each in problems if each]
    _check(not found, "; ".join(map(str, found)))


def _file_problem(path: Path, parts: Iterable[tuple[int, int]]) -> str | None:
    if not path.is_file():
        return f"{printable(path.name)} is missing"
    size, end = path.stat().st_size, 0
    for begin, length in sorted(parts):
        if begin < end:
            return f"{printable(path.name)} has two parts that share bytes"
        end = begin + length
    if size < end:
        return f"{printable(path.name)} is truncated: {size} bytes of {end}"
    return None


def _check_tensor(name: str, stored: Any, parts: Mapping[Any, Any]) -> None:
    shown = printable(name, max_chars=200)
    size, chunks = getattr(stored, "size", None), getattr(stored, "chunks", None)
    dtype = getattr(getattr(stored, "properties", None), "dtype", None)
    is_tensor = isinstance(stored, TensorStorageMetadata) and isinstance(dtype, torch.dtype)
    _check(is_tensor and _is_size(size) and isinstance(chunks, list), f"{shown} is no tensor")
    assert size is not None
    assert chunks is not None
    assert dtype is not None
    boxes = [_box(shown, size, chunk) for chunk in chunks]
    for offset, lengths in boxes:
        info = parts.get((name, offset))
        _check(info is not None, f"a chunk of {shown} is nowhere")
        needed = math.prod(lengths) * dtype.itemsize
        _check(needed <= getattr(info, "length", 0), f"a chunk of {shown} is larger than its part")
    filled = [box for box in boxes if math.prod(box[1])]
    covered = sum(math.prod(lengths) for _, lengths in filled)
    total = math.prod(size)
    _check(
        covered == total and not _overlap(filled),
        f"{shown} of {tuple(size)} is not covered by its {len(chunks)} chunks exactly once: they "
        f"have {covered:,} values of {total:,}",
    )


def _box(shown: str, size: Any, chunk: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns where a chunk begins, and its size."""
    offset, lengths = getattr(chunk, "offsets", None), getattr(chunk, "sizes", None)
    is_chunk = isinstance(chunk, ChunkStorageMetadata) and _is_size(offset) and _is_size(lengths)
    _check(is_chunk, f"a chunk of {shown} has no place")
    assert offset is not None
    assert lengths is not None
    _check(len(offset) == len(lengths) == len(size), f"a chunk of {shown} has no place")
    ends = (begin + length for begin, length in zip(offset, lengths, strict=True))
    _check(all(end <= limit for end, limit in zip(ends, size, strict=True)), f"{shown} is exceeded")
    return tuple(offset), tuple(lengths)


def _overlap(boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Returns whether two chunks share a value, by a sweep along the axis with most offsets."""
    if len(boxes) < 2:
        return False
    dims = len(boxes[0][0])
    if dims == 0:
        return True
    axis = max(range(dims), key=lambda dim: len({offset[dim] for offset, _ in boxes}))
    pairs, opened = 0, list[tuple[tuple[int, ...], tuple[int, ...]]]()
    for box in sorted(boxes, key=lambda each: each[0][axis]):
        # Chunks that end before this one begins cannot meet it, nor any that follows.
        opened = [each for each in opened if each[0][axis] + each[1][axis] > box[0][axis]]
        pairs += len(opened)
        # Too many to compare counts as an overlap: a file could otherwise keep us busy for hours.
        if pairs > _MAX_PAIRS or any(_share(each, box) for each in opened):
            return True
        opened.append(box)
    return False


def _share(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    return all(a < b + n and b < a + m for a, m, b, n in zip(*first, *second, strict=True))
