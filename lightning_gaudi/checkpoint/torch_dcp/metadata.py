"""Checks what `.metadata` says of a folder of shards, before anything is read or made of it.

Torch believes it: names may lead out of the folder, sizes may be any, and of a tensor whose chunks
do not cover it the rest stays uninitialised memory (2.6 to 2.13, `default_planner.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from lightning_gaudi._core.untrusted import path_inside, printable

from ..manifest import ADVICE, DamagedCheckpointError, IncompleteCheckpointError
from .layout import METADATA

_Box = list[tuple[int, int]]
"""Of a chunk, in each dim, where it begins and where it ends."""


def check(metadata: Any, folder: Path) -> Metadata:
    """Returns the metadata of a folder if it can be believed.

    Args:
        metadata: What the file holds.
        folder: The one that it lies in.

    Raises:
        IncompleteCheckpointError: A file is missing.
        DamagedCheckpointError: A file is cut short, a name leads out of the folder, or a tensor is
            not made up of its chunks.
    """
    try:
        if not isinstance(metadata, Metadata):
            raise ValueError(f"it holds {type(metadata).__name__}, and not what torch's DCP saves")
        _check_paths(metadata)
        problems = _file_problems(_stored(metadata), folder)
        if not problems:
            for name, each in metadata.state_dict_metadata.items():
                _check_value(name, each, metadata.storage_data)
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise DamagedCheckpointError(
            f"{printable(folder / METADATA)} is truncated or damaged ("
            f"{printable(error, max_chars=300)}). "
            f"{ADVICE}"
        ) from error
    if problems:
        is_missing = any(each.endswith(" is missing") for each in problems)
        raise (IncompleteCheckpointError if is_missing else DamagedCheckpointError)(
            f"The checkpoint {printable(folder)} is incomplete: {'; '.join(problems)}. {ADVICE}"
        )
    return metadata


def _check_paths(metadata: Metadata) -> None:
    """Refuses values that have no place, or one far behind the end of a list."""
    paths = metadata.planner_data or {}
    if paths.keys() != metadata.state_dict_metadata.keys():
        raise ValueError("its values and their places do not belong together")
    for path in paths.values():
        for key in path if isinstance(path, tuple) and path else [None]:
            is_position = isinstance(key, int) and 0 <= key < len(paths)
            if isinstance(key, bool) or not (isinstance(key, str) or is_position):
                raise ValueError(f"{path!r} is not the place of a value")


def _stored(metadata: Metadata) -> Iterator[_StorageInfo]:
    for part in metadata.storage_data.values():
        if not isinstance(part, _StorageInfo) or not isinstance(part.relative_path, str):
            raise ValueError(f"{part!r} is not a part of a file")
        _check_numbers((part.offset, part.length))
        yield part


def _file_problems(parts: Iterable[_StorageInfo], folder: Path) -> list[str]:
    """Returns what is wrong with the files that hold the parts.

    Raises:
        ValueError: A name leads out of the folder.
    """
    ends: dict[str, list[tuple[int, int]]] = {}
    for part in parts:
        ends.setdefault(part.relative_path, []).append((part.offset, part.offset + part.length))
    problems = []
    for name, ranges in sorted(ends.items()):
        path = path_inside(folder, name)
        if not path.is_file():
            problems.append(f"{printable(name)} is missing")
            continue
        size, needed = path.stat().st_size, max(end for _, end in ranges)
        if size < needed:
            problems.append(f"{printable(name)} is truncated: {size} bytes of {needed}")
        elif sum(end - start for start, end in ranges) > size:
            raise ValueError(f"parts of {name} lie in each other")
    return problems


def _check_value(name: Any, value: Any, stored: Any) -> None:
    if isinstance(value, BytesStorageMetadata):
        stored[MetadataIndex(name)]
        return
    if not isinstance(value, TensorStorageMetadata):
        raise ValueError(f"{name!r} is neither a tensor nor a value")
    dtype = value.properties.dtype
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} has no dtype")
    _check_numbers(value.size)
    boxes = []
    for chunk in value.chunks:
        offsets, sizes = [*chunk.offsets], [*chunk.sizes]
        _check_numbers((*offsets, *sizes))
        if len(offsets) != len(value.size) or len(sizes) != len(value.size):
            raise ValueError(f"a chunk of {name!r} has another number of dims")
        part = stored[MetadataIndex(name, torch.Size(offsets))]
        if prod(sizes) * dtype.itemsize > part.length:
            raise ValueError(f"a chunk of {name!r} is larger than its part of {part.relative_path}")
        boxes.append([(at, at + size) for at, size in zip(offsets, sizes, strict=True)])
    _check_cover(name, [*value.size], boxes)


def _check_cover(name: Any, size: Sequence[int], boxes: list[_Box]) -> None:
    """Refuses a tensor of which a part is in no chunk, or in several.

    Chunks within it that do not overlap, and have as many elements as it has, cover it.
    """
    boxes = [box for box in boxes if all(start < end for start, end in box)]
    if any(end > dim for box in boxes for (_, end), dim in zip(box, size, strict=True)):
        raise ValueError(f"a chunk of {name!r} lies outside of it")
    num_elements = sum(prod(end - start for start, end in box) for box in boxes)
    if num_elements != prod(size):
        raise ValueError(f"{name!r} has {prod(size)} elements, and its chunks {num_elements}")
    if len(boxes) > 1 and _overlap(boxes):
        raise ValueError(f"chunks of {name!r} lie in each other")


def _overlap(boxes: list[_Box]) -> bool:
    """Whether any two of the boxes do, by going along the dim in which most of them differ."""
    dims = range(len(boxes[0]))
    dim = max(dims, key=lambda each: len({box[each] for box in boxes}))
    boxes = sorted(boxes, key=lambda box: box[dim])
    if all(first[dim][1] <= second[dim][0] for first, second in pairwise(boxes)):
        return False
    open_boxes: list[_Box] = []
    for box in boxes:
        open_boxes = [each for each in open_boxes if each[dim][1] > box[dim][0]]
        if any(_meet(box, each) for each in open_boxes):
            return True
        open_boxes.append(box)
    return False


def _meet(first: _Box, second: _Box) -> bool:
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(first, second, strict=True))


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise ValueError(f"{value!r} is not the size or the place of anything")
