"""Unpickling that builds tensors and plain data, and refuses to call anything else.

Python's own unpickler, of any protocol, with each way closed by which a pickle runs code: names
outside of `plain_types`, calls of what such a name did not give, states of other objects. Torch's
for `weights_only=True` does the same, but knows protocol 2 alone: the vendor's lazy mode saves with
4, and torch's DCP with Python's default. The vendor puts one in its place that heeds no
`torch.serialization.add_safe_globals` (bridge 1.19, `utils/_weights_only_unpickler.py`).
"""

from __future__ import annotations

import _compat_pickle
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable
from types import ModuleType
from typing import IO, Any, ClassVar

import numpy as np
import torch

from . import numpy_values, plain_types
from .errors import RefusedError

_Base: Any = pickle._Unpickler
"""The one in Python: the one in C has no place to ask from what is called."""


class Unpickler(_Base):  # type: ignore[misc]
    """Loads a pickle of tensors and plain data.

    Args:
        file: Binary.
        options: As for `pickle.Unpickler`.

    Raises:
        RefusedError: It holds something else, which is named.
    """

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        super().__init__(file, **options)
        # What names gave, by id: what may be called, and those of it whose objects take a state.
        self._found: dict[int, Any] = {}
        self._stateful: tuple[type, ...] = (OrderedDict, torch.nn.Parameter)

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
        self.append(kind.__new__(kind, *arguments, **keywords))

    def _build(self) -> None:
        state, target = self.stack[-1], self.stack[-2]
        if type(target) is torch.Tensor:  # of old files
            target.set_(*self.stack.pop())
        elif isinstance(target, (np.dtype, np.ndarray)):
            numpy_values.build(target, self.stack.pop())
        elif isinstance(target, self._stateful):
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
        _Base.load_setitem(self)

    def _setitems(self) -> None:
        self._check_is(self.metastack[-1][-1], dict)
        _Base.load_setitems(self)

    def _additems(self) -> None:
        self._check_is(self.metastack[-1][-1], set)
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
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _setitem,
        pickle.SETITEMS[0]: _setitems,
        pickle.ADDITEMS[0]: _additems,
        # Only pickles of old classes, or made by hand, have these.
        **dict.fromkeys(
            (pickle.INST[0], pickle.OBJ[0], pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), _refuse
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


PLAIN_PICKLE = ModuleType("_plain_pickle", "The pickle module, for tensors and plain data.")
"""For `torch.load(pickle_module=...)`."""
PLAIN_PICKLE.__dict__.update(
    vars(pickle), __name__="_plain_pickle", Unpickler=Unpickler, load=_load
)
