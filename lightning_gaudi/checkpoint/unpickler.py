"""An unpickler that builds tensors and plain data, and refuses to call anything else.

It is Python's own unpickler, for any protocol, with each way closed by which a pickle runs code:
names outside of `plain_types`, calls of anything but such a name, and states of other objects.
Torch's unpickler for `weights_only=True` does the same but reads protocol 2 alone, while the
vendor's lazy mode saves with protocol 4, and torch's DCP with Python's default. The vendor replaces
torch's by one that ignores `torch.serialization.add_safe_globals` (bridge 1.19,
`utils/_weights_only_unpickler.py`).
"""

from __future__ import annotations

import _compat_pickle
import pickle
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import IO, Any, ClassVar

import numpy as np
import torch

from . import calls, numpy_values, plain_types
from .errors import ExceededError, RefusedError
from .storages import Source

_Base: Any = pickle._Unpickler
"""The implementation in Python: the one in C has no hook before a call."""

_MAX_DEPTH = 200
"""How deeply values may be nested, since functions that walk them recurse once for each level."""

_MAX_UNFOLDED = 10**7
"""How many objects there may be, where one that is referred to several times counts as often."""


class _Whole:
    """A file that limits each read to the bytes that are left, since Python allocates what it asks.

    It has no `fileno`, since torch tries a file that has one as a tar archive first.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        start = file.tell()
        self._end = file.seek(0, 2)
        file.seek(start)
        self.num_bytes = self._end - start
        self.readline, self.tell, self.seek = file.readline, file.tell, file.seek

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes."""
        rest = max(0, self._end - self._file.tell())
        return self._file.read(rest if size < 0 else min(size, rest))

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer with the next bytes, as far as there are some."""
        return self._file.readinto(buffer)  # type: ignore[attr-defined, no-any-return]


def bounded(file: IO[bytes]) -> Any:
    """Returns a file of which no read allocates more than there is in it."""
    return file if isinstance(file, _Whole) else _Whole(file)


class Unpickler(_Base):  # type: ignore[misc]
    """Loads a pickle of tensors and plain data.

    Args:
        file: Binary.
        options: As for `pickle.Unpickler`.

    Raises:
        RefusedError: It holds something else, which is named.
        ExceededError: It would take more than the file can hold.
    """

    source: ClassVar[Source | None] = None
    """Checks the storages that the pickle names; see `pickle_module`."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        self._file = bounded(file)
        super().__init__(self._file, **options)
        self._budget = calls.Budget(self._file.num_bytes)
        # The objects that names stood for, by id, since some have no hash. Only these may be
        # called. They are held so that no other object can get the id of one.
        self._found: dict[int, Any] = {}
        self._stateful: tuple[type, ...] = (OrderedDict, torch.nn.Parameter)

    def load(self) -> Any:
        """Returns what the pickle holds."""
        found = _Base.load(self)
        check_shape(found)
        return found

    def find_class(self, module: str, name: str) -> Any:
        """Returns the object that a name stands for, if it is allowed."""
        # A pickle of protocol 0 to 2 has the names of Python 2.
        if self.proto < 3:
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
        self._check_call(self.stack[-1], arguments)
        self.stack[-1] = self.stack[-1](*arguments)

    def _newobj(self) -> None:
        arguments = self.stack.pop()
        self._append_new(self.stack.pop(), arguments, {})

    def _newobj_ex(self) -> None:
        keywords = self.stack.pop()
        arguments = self.stack.pop()
        self._append_new(self.stack.pop(), arguments, keywords)

    def _append_new(self, kind: Any, arguments: Any, keywords: Any) -> None:
        self._check_call(kind, arguments, keywords)
        if not isinstance(kind, type):
            raise RefusedError(f"an object of {_describe(kind)}")
        self.append(kind.__new__(kind, *arguments, **keywords))

    def _check_call(self, called: Any, arguments: Any, keywords: Any = None) -> None:
        self._check_is_found(called)
        calls.check(self._budget, called, arguments, keywords)
        # This function calls its first argument, so that must be checked like a call of the pickle
        # itself.
        if called is torch._tensor._rebuild_from_type_v2:
            rebuild, kind, inner, state = arguments
            self._check_is_found(kind)
            if not (isinstance(kind, type) and issubclass(kind, torch.Tensor)):
                raise RefusedError(f"a tensor that is a {_describe(kind)}")
            if not calls.is_rebuilding(rebuild):
                raise RefusedError(f"a tensor made by {_describe(rebuild)}")
            self._check_call(rebuild, inner)
            calls.check_attributes(state)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        # Files of early releases of torch give a tensor its values by a state.
        if isinstance(target, torch.Tensor):
            calls.check_old_state(self._budget, state)
            torch.Tensor.__setstate__(target, state)  # type: ignore[no-untyped-call]
        elif isinstance(target, (np.dtype, np.ndarray)):
            for each in state if isinstance(state, tuple) else ():
                self._budget.copy(each)
            numpy_values.build(target, state)
        elif isinstance(target, self._stateful) and not isinstance(target, Enum):
            _give_state(target, state)
        else:
            raise RefusedError(f"a state for {_describe(target)}: {_describe(state)}")

    def _binpersid(self) -> None:
        saved = self.stack.pop()
        if self.source is None:
            raise RefusedError("a storage of another file")
        self.source.check(saved)
        self.append(self.persistent_load(saved))

    def _bytearray(self) -> None:
        # Python's own method allocates the size that the pickle claims before it reads.
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(min(size, self._file.num_bytes))))

    def _frozenset(self) -> None:
        items = self.pop_mark()
        for each in items:
            self._budget.hash(each)
        self.append(frozenset(items))

    def _dict(self) -> None:
        items = self.pop_mark()
        for key in items[::2]:
            self._budget.hash(key)
        self.append({items[at]: items[at + 1] for at in range(0, len(items), 2)})

    def _append(self) -> None:
        # Python's method calls `append` or `extend` of whatever object is there. The four methods
        # below are the same for others.
        self._check_is(self.stack[-2], list, deque)
        _Base.load_append(self)

    def _appends(self) -> None:
        self._check_is(self.metastack[-1][-1], list, deque)
        _Base.load_appends(self)

    def _setitem(self) -> None:
        self._check_is(self.stack[-3], dict)
        self._budget.hash(self.stack[-2])
        _Base.load_setitem(self)

    def _setitems(self) -> None:
        self._check_is(self.metastack[-1][-1], dict)
        for key in self.stack[::2]:
            self._budget.hash(key)
        _Base.load_setitems(self)

    def _additems(self) -> None:
        self._check_is(self.metastack[-1][-1], set)
        for each in self.stack:
            self._budget.hash(each)
        _Base.load_additems(self)

    def _refuse(self) -> None:
        raise RefusedError("an object of a kind that no checkpoint consists of")

    def _check_is_found(self, called: Any) -> None:
        if id(called) not in self._found or not callable(called):
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
        pickle.BINPERSID[0]: _binpersid,
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.FROZENSET[0]: _frozenset,
        pickle.DICT[0]: _dict,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _setitem,
        pickle.SETITEMS[0]: _setitems,
        pickle.ADDITEMS[0]: _additems,
        # INST and OBJ make objects of old-style classes, EXT looks up a registry of names, and
        # PERSID is text. Nothing that saves checkpoints writes any of them.
        **dict.fromkeys(
            (
                pickle.INST[0],
                pickle.OBJ[0],
                pickle.EXT1[0],
                pickle.EXT2[0],
                pickle.EXT4[0],
                pickle.PERSID[0],
            ),
            _refuse,
        ),
    }


def _new_name(module: str, name: str) -> tuple[str, str]:
    """Returns the name in Python 3 of a module and name of Python 2."""
    module_now = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return _compat_pickle.NAME_MAPPING.get((module, name), (module_now, name))


def _describe(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _give_state(target: Any, state: Any) -> None:
    """Gives an object its state as BUILD does, but ignores a `__setstate__` of the instance.

    A pickle can put such a method into the instance's own dict.
    """
    set_state = getattr(type(target), "__setstate__", None)
    if set_state is not None:
        set_state(target, state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    for each in (attributes, slots):
        if each and not (isinstance(each, dict) and all(isinstance(name, str) for name in each)):
            raise RefusedError(f"an invalid state for {_describe(target)}")
    if attributes:
        vars(target).update(attributes)
    for name, value in (slots or {}).items():
        if name.startswith("__"):
            raise RefusedError(f"a state for {_describe(target)} with {name}")
        setattr(target, name, value)


def check_shape(loaded: Any) -> None:
    """Refuses values that are nested too deeply, contain themselves, or unfold to too many.

    Raises:
        ExceededError: It is.
    """
    measured: dict[int, tuple[int, int]] = {}
    opened: set[int] = set()
    pending: list[tuple[Any, bool]] = [(loaded, False)]
    # A stack of our own: recursion would fail on just the values that this looks for. Each
    # container is visited twice, before its parts and after them.
    while pending:
        value, is_closing = pending.pop()
        inner = [each for each in _items(value) if isinstance(each, _CONTAINERS)]
        if is_closing:
            found = [measured[id(each)] for each in inner]
            size = 1 + len(_items(value)) + sum(each[0] for each in found)
            depth = 1 + max((each[1] for each in found), default=0)
            if size > _MAX_UNFOLDED or depth > _MAX_DEPTH:
                raise ExceededError("values that are nested too deeply or repeated too often")
            measured[id(value)] = size, depth
            opened.discard(id(value))
        elif id(value) not in measured and isinstance(value, _CONTAINERS):
            if id(value) in opened:
                raise ExceededError("a value that is within itself")
            opened.add(id(value))
            pending.append((value, True))
            pending.extend((each, False) for each in inner if id(each) not in measured)


_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def _items(value: Any) -> list[Any]:
    return (
        [*value, *value.values()]
        if isinstance(value, dict)
        else [*value]
        if isinstance(value, _CONTAINERS)
        else []
    )


def _load(file: IO[bytes], **options: Any) -> Any:
    return Unpickler(file, **options).load()


def pickle_module(source: Source | None) -> ModuleType:
    """Returns a pickle module for torch's loading functions that allows tensors and plain data.

    Args:
        source: Checks the storages that the pickle names; None if it may name none.
    """
    kind = type("Unpickler", (Unpickler,), {"source": source})
    found = ModuleType("_plain_pickle", "The pickle module, for tensors and plain data.")
    names = {"Unpickler": kind, "load": lambda file, **options: kind(file, **options).load()}
    found.__dict__.update(vars(pickle), __name__="_plain_pickle", **names)
    return found
