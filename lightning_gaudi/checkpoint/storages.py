"""Checks the storages that a pickle names against what its file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .errors import ExceededError, RefusedError


class Source:
    """The bytes that a file holds for the storages of its tensors.

    Torch copies as many bytes as the pickle says, even if the record has fewer (2.13).

    Args:
        num_bytes: The file's length; all storages of a file without records together have no more.
        records: The sizes of an archive's records, by name; None if the file is no archive.
    """

    def __init__(self, num_bytes: int, records: Mapping[str, int] | None) -> None:
        self._left, self._records = num_bytes, records
        self._known: dict[Any, int] = {}

    def check(self, saved: Any) -> None:
        """Refuses a storage that is not in the file.

        Args:
            saved: How the pickle names it, see `torch.serialization`.

        Raises:
            ExceededError: It is larger than what the file has of it.
            RefusedError: It is not a storage.
        """
        length = 5 if self._records is not None else 6
        if not isinstance(saved, tuple) or len(saved) != length or saved[0] not in ("storage",):
            # Torch's old format can name a class, too, whose source torch then compares, and may
            # write the difference to a file.
            raise RefusedError("a persistent object that is not a storage")
        _, kind, key, location, numel, *view = saved
        if not isinstance(key, str) or not isinstance(location, str) or type(numel) is not int:
            raise RefusedError("a storage without a name, a place or a size")
        num_bytes = numel * _itemsize(kind)
        if numel < 0:
            raise ExceededError(f"a storage of {numel:,} values")
        if self._records is not None:
            self._check_record(f"data/{key}", num_bytes)
        else:
            self._check_known(key, num_bytes)
            _check_view(view[0], num_bytes)

    def _check_record(self, name: str, num_bytes: int) -> None:
        assert self._records is not None
        has = self._records.get(name)
        if has is None:
            raise ExceededError("a storage that the file does not have")
        if num_bytes > has:
            raise ExceededError(f"a storage of {num_bytes:,} bytes in a record of {has:,}")

    def _check_known(self, key: str, num_bytes: int) -> None:
        if key not in self._known:
            self._known[key] = num_bytes
            self._left -= num_bytes
        if self._left < 0 or self._known[key] != num_bytes:
            raise ExceededError("storages of more bytes than the file has")


def _itemsize(kind: Any) -> int:
    # An untyped storage counts bytes, a typed one values.
    if kind is torch.storage.UntypedStorage:
        return 1
    dtype = kind.dtype if isinstance(kind, torch.serialization.StorageType) else None
    if dtype is None and isinstance(kind, type) and issubclass(kind, torch.storage._LegacyStorage):
        dtype = kind.dtype
    if not isinstance(dtype, torch.dtype):
        raise RefusedError("a storage of no known kind")
    return dtype.itemsize


def _check_view(view: Any, num_bytes: int) -> None:
    if view is None:
        return
    if not isinstance(view, tuple) or len(view) != 3 or not isinstance(view[0], str):
        raise RefusedError("a part of a storage that is not described as torch does")
    if any(type(each) is not int or not 0 <= each <= num_bytes for each in view[1:]):
        raise ExceededError("a part of a storage that is not in it")
