"""Unpickling that builds tensors and plain data, and refuses to call anything else.

Python's own unpickler, of any protocol, with each way closed by which a pickle runs code: names
outside of `plain_types`, calls of what such a name did not give, states of other objects. Torch's
for `weights_only=True` does the same, but knows protocol 2 alone: the vendor's lazy mode saves with
4, and torch's DCP with Python's default. The vendor puts one in its place that heeds no
`torch.serialization.add_safe_globals` (bridge 1.19, `utils/_weights_only_unpickler.py`).
"""

from __future__ import annotations

import _compat_pickle
import os
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import ModuleType
from typing import IO, Any, ClassVar

import numpy as np
import torch

from . import bounds, numpy_values, plain_types
from .errors import RefusedError

_Base: Any = pickle._Unpickler
"""The one in Python: the one in C has no place to ask from what is called."""


class Unpickler(_Base):  # type: ignore[misc]
    """Loads a pickle of tensors and plain data.

    Args:
        file: Binary, with a size that can be told.
        options: As for `pickle.Unpickler`.

    Raises:
        RefusedError: It holds something else, which is named.
    """

    storage_bytes: Mapping[str, int] | int = 0
    """How long the storages of tensors are, by their keys; or the most that all of them are."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        super().__init__(file, **options)
        position = file.tell()
        self._num_bytes = file.seek(0, os.SEEK_END) - position
        file.seek(position)
        self._file_read: Any = self._bounded(file.read)
        # What names gave, by id: what may be called, and those of it whose objects take a state.
        self._found: dict[int, Any] = {}
        self._stateful: tuple[type, ...] = (OrderedDict, torch.nn.Parameter)

    def load(self) -> Any:
        """Returns what the pickle gives."""
        found = super().load()
        bounds.check_extent(found)
        return found

    def _bounded(self, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """Returns a function that reads no more than there is: a pickle may claim any length."""

        def read_what_is_there(num_bytes: int = -1, /) -> bytes:
            self._check_length(num_bytes)
            return read(num_bytes)

        return read_what_is_there

    def _check_length(self, num_bytes: int) -> None:
        if num_bytes > self._num_bytes:
            raise pickle.UnpicklingError(f"{num_bytes:,} bytes are expected, and not there")

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for, if it may be asked for."""
        if self.proto < 3:  # as Python 2 names it
            module, name = _new_name(module, name)
        try:
            found, takes_state = plain_types.find(f"{module}.{name}")
        except LookupError:
            raise RefusedError(f"{module}.{name}") from None
        if takes_state and isinstance(found, type):
            self._stateful += (found,)
        self._found[id(found)] = found
        return found

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self._check_is_found(self.stack[-1])
        bounds.check_arguments(self.stack[-1], arguments)
        self.stack[-1] = self.stack[-1](*arguments)

    def _newobj(self) -> None:
        arguments = self.stack.pop()
        self._append_new(self.stack.pop(), arguments, {})

    def _newobj_ex(self) -> None:
        keywords = self.stack.pop()
        arguments = self.stack.pop()
        self._append_new(self.stack.pop(), arguments, keywords)

    def _append_new(self, kind: Any, arguments: Any, keywords: Any) -> None:
        self._check_is_found(kind)
        bounds.check_arguments(kind, arguments)
        self.append(kind.__new__(kind, *arguments, **keywords))

    def _build(self) -> None:
        state, target = self.stack[-1], self.stack[-2]
        if type(target) is torch.Tensor:  # of old files
            target.set_(*self.stack.pop())
        elif isinstance(target, (np.dtype, np.ndarray)):
            numpy_values.build(target, self.stack.pop())
        elif isinstance(target, self._stateful) and not isinstance(target, Enum):
            _Base.load_build(self)
        else:
            raise RefusedError(f"a state for {_describe(target)}: {_describe(state)}")

    def _append(self) -> None:
        self._check_is(self.stack[-2], list, deque)
        _Base.load_append(self)

    def _appends(self) -> None:
        self._check_is(self.metastack[-1][-1], list, deque)
        _Base.load_appends(self)

    def _setitem(self) -> None:
        self._check_is(self.stack[-3], dict)
        bounds.check_key(self.stack[-2])
        _Base.load_setitem(self)

    def _setitems(self) -> None:
        self._check_is(self.metastack[-1][-1], dict)
        self._check_keys(2)
        _Base.load_setitems(self)

    def _additems(self) -> None:
        self._check_is(self.metastack[-1][-1], set)
        self._check_keys()
        _Base.load_additems(self)

    def _dict(self) -> None:
        self._check_keys(2)
        _Base.load_dict(self)

    def _frozenset(self) -> None:
        self._check_keys()
        _Base.load_frozenset(self)

    def _bytearray(self) -> None:
        num_bytes = int.from_bytes(self.read(8), "little")
        self._check_length(num_bytes)
        self.append(bytearray(self.read(num_bytes)))

    def _persistent(self) -> None:
        self._check_storage(self.stack[-1])
        _Base.load_binpersid(self)

    def _check_storage(self, identifier: Any) -> None:
        """Refuses a storage that is longer than what the file has of it.

        Torch takes the pickle's word for that and reads what lies behind it in memory (2.6 to
        2.13, `get_storage_from_record`).
        """
        if not isinstance(identifier, tuple) or len(identifier) < 5:
            raise RefusedError("a reference to something else than the storage of a tensor")
        what, kind, key, _, num_items = identifier[:5]
        dtype = torch.uint8 if kind is torch.UntypedStorage else getattr(kind, "dtype", None)
        if what != "storage" or not isinstance(key, str) or not isinstance(dtype, torch.dtype):
            raise RefusedError("a reference to something else than the storage of a tensor")
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise RefusedError(f"a storage of {type(num_items).__name__} items")
        found = self.storage_bytes
        has = found if isinstance(found, int) else found.get(key, 0)
        if not 0 <= num_items * dtype.itemsize <= has:
            raise RefusedError(f"a storage of {num_items} x {dtype.itemsize} bytes, of {has}")

    def _refuse(self) -> None:
        raise RefusedError("an object of a kind that no checkpoint consists of")

    def _check_keys(self, step: int = 1) -> None:
        for key in self.stack[::step]:
            bounds.check_key(key)

    def _check_is_found(self, called: Any) -> None:
        is_storage = called is torch.UntypedStorage or called is torch.storage.TypedStorage
        if id(called) not in self._found or not callable(called) or is_storage:
            raise RefusedError(f"a call of {_describe(called)}")

    def _check_is(self, target: Any, *kinds: type) -> None:
        if not isinstance(target, kinds):
            raise RefusedError(f"items for {_describe(target)}")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_Base.dispatch,
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _newobj,
        pickle.NEWOBJ_EX[0]: _newobj_ex,
        pickle.BUILD[0]: _build,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _setitem,
        pickle.SETITEMS[0]: _setitems,
        pickle.ADDITEMS[0]: _additems,
        pickle.DICT[0]: _dict,
        pickle.FROZENSET[0]: _frozenset,
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.BINPERSID[0]: _persistent,
        # Only pickles of old classes, or made by hand, have these.
        **dict.fromkeys(
            (
                *(pickle.INST[0], pickle.OBJ[0], pickle.PERSID[0]),
                *(pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]),
            ),
            _refuse,
        ),
    }


def _new_name(module: str, name: str) -> tuple[str, str]:
    """What Python 3 calls it."""
    module_now = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return _compat_pickle.NAME_MAPPING.get((module, name), (module_now, name))


def _describe(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _load(file: IO[bytes], **options: Any) -> Any:
    return Unpickler(file, **options).load()


def plain_pickle(storage_bytes: Mapping[str, int] | int) -> ModuleType:
    """Returns the pickle module, for tensors and plain data: for `torch.load(pickle_module=...)`.

    Args:
        storage_bytes: See `Unpickler.storage_bytes`.
    """
    made = ModuleType("_plain_pickle", "The pickle module, for tensors and plain data.")
    kind = type("Unpickler", (Unpickler,), {"storage_bytes": storage_bytes})
    made.__dict__.update(vars(pickle), __name__="_plain_pickle", Unpickler=kind, load=_load)
    return made
