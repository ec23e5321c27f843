"""Estimates how large a checkpoint will be, and checks that there is room before it is written."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from .snapshot import Snapshot

_SLACK_BYTES = 2**16
_SLACK = 1 / 256
"""The share of names, settings, paddings and the manifest beside the tensors of a file."""
_TENSOR_BYTES = 256
"""The bytes beside the values of each tensor."""


_SHARDED = ("latest", ".metadata", "meta.pt")
"""Files by which a folder is known as a checkpoint of DeepSpeed's or torch's."""


def needed_bytes(*states: Any) -> int:
    """Returns about how many bytes the file of some objects will have, rather too many.

    Args:
        states: Containers in containers, with tensors of any device. Tensors that share their
            values count once.
    """
    total = file_bytes(*states)
    return total + int(total * _SLACK) + _SLACK_BYTES


def file_bytes(*states: Any) -> int:
    """Returns what `needed_bytes` does, without a reserve."""
    seen: dict[Any, int] = {}
    for state in states:
        _add(state, seen)
    return sum(seen.values()) + _TENSOR_BYTES * len(seen)


def whole_bytes(*states: Any) -> int:
    """Returns the size of what all ranks save together: sharded tensors count in full."""
    tensors = [each for each in tree_leaves(states) if isinstance(each, Tensor)]
    sizes = (math.prod(each.size()) * each.dtype.itemsize for each in tensors)
    return sum(sizes) + _TENSOR_BYTES * len(tensors)


def check_space(target: Path, num_bytes: int, largest_file_bytes: int | None = None) -> None:
    """Raises if there is too little room for what is to be written.

    Args:
        target: What is to be written; its folder is there.
        num_bytes: All that will be written to the file system before anything there is removed.
        largest_file_bytes: The largest of the files; None for all in one.

    Raises:
        OSError: There is less; says what is needed and what is there.
    """
    try:
        status = os.statvfs(target.parent)
    except OSError:
        # The write itself will raise an error that says more.
        return
    free = status.f_bavail * status.f_frsize
    # A write beyond `ulimit -f` fails only when all before it has been written.
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = num_bytes if largest_file_bytes is None else largest_file_bytes
    if num_bytes > free:
        code, have = errno.ENOSPC, f"{mib(free)} are free there"
    elif limit != resource.RLIM_INFINITY and largest > limit:
        code, num_bytes = errno.EFBIG, largest
        have = f"this process may write files of {mib(limit)} (ulimit -f)"
    else:
        return
    raise OSError(
        code,
        f"Could not save {target}: {os.strerror(code)}. It needs {mib(num_bytes)}, and {have}."
        f"{kept(target)} Free some space or save elsewhere.",
    )


def kept(target: Path) -> str:
    """Returns a sentence that the earlier checkpoint is intact, if there is one."""
    has_one = target.is_file() or any((target / name).is_file() for name in _SHARDED)
    return " The checkpoint that was there before is intact." if has_one else ""


def mib(num_bytes: int) -> str:
    """Returns a size in MiB, as messages show it."""
    return f"{num_bytes / 2**20:,.1f} MiB"


def _add(value: Any, seen: dict[Any, int]) -> None:
    if hasattr(value, "local_shards"):  # a ShardedTensor, which is a Tensor that has no storage
        for shard in value.local_shards():
            _add(shard.tensor, seen)
    elif isinstance(value, Tensor):
        local = getattr(value, "_local_tensor", value)  # of a DTensor, this rank's
        if local.device.type == "cpu" and hasattr(local, "untyped_storage"):
            # torch.save writes the whole storage, even of a tensor that is a view of a part.
            storage = local.untyped_storage()
            seen[storage._cdata] = storage.nbytes()
        elif local.device.type != "meta":
            key = (local.untyped_storage()._cdata, local.storage_offset(), local.shape)
            seen[key] = local.numel() * local.element_size()
    elif isinstance(value, Mapping):
        for each in value.values():
            _add(each, seen)
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            _add(each, seen)
    elif isinstance(value, Snapshot):
        _add(value.tensors, seen)
        seen[id(value)] = value.num_pickled_bytes
    elif isinstance(value, (bytes, str)):
        seen[id(value)] = len(value)
