"""Pickles what a worker of a DataLoader needs and a fork would have handed over.

Functions and classes of the program itself, those without an importable name (lambdas, local ones),
and those of modules that no worker could import are pickled by value. So no worker runs the program
again to find them: it needs no `if __name__ == "__main__"`, and a notebook may define them. What
the program has changed in other modules goes along; see `program_state`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
import torch
from torch._library.custom_ops import CustomOpDef

from . import program_state, shared_memory
from .program_state import PROGRAM

_MAX_DEPTH = 8
_NAMELESS = "<dynamic-code>"
"""The file name that cloudpickle gives to all code."""
ADVICE = (
    "Workers are not forked from the process that holds a card: they import modules anew, and get "
    "what the program has registered itself. Register and change what the data set needs in a "
    "module that it imports, or in worker_init_fn; or pass num_workers=0."
)
"""Advice for errors of a worker that lacks something that the program has."""

_found_for: list[Any] = [None, None]
"""The last owner of workers, and what `_changes` found for it."""
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def dumps(process: BaseProcess) -> tuple[bytes, bytes, Any, list[shared_memory.Place]]:
    """Pickles a process that is about to start, for `loads`.

    Args:
        process: Its target's arguments are what a DataLoader gives its workers.

    Raises:
        ValueError: Something does not pickle; the message says what.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        # Unpickled in this order: operators are registered before anything that may refer to one.
        pickler.dump((program_state.Operators(), process, pickler.found, _changes(process)))
    except Exception as error:
        raise ValueError(_explain(process, error)) from error
    memory = shared_memory.memory_of(_owner(process))
    return file.getvalue(), _bare(process), *memory.hand_over(pickler.buffers)


def _changes(process: BaseProcess) -> tuple[Any, Any]:
    """Returns the program's changes for a loader's workers, searched for once for all of them."""
    owner = _owner(process)
    if _found_for[0] is not owner:
        _found_for[:] = [owner, (program_state.patches(), program_state.values())]
    found: tuple[Any, Any] = _found_for[1]
    return found


def _bare(process: BaseProcess) -> bytes:
    """Pickles a process without any object of the program, so that it can always be unpickled."""
    bare: Any = copy.copy(process)
    names = inspect.signature(bare._target).parameters
    ours = {"dataset": None, "collate_fn": None, "init_fn": None}
    # The target is torch's `_worker_loop`, whose arguments are found by name.
    bare._args = tuple(ours.get(n, v) for n, v in zip(names, bare._args, strict=False))
    bare._kwargs = {name: ours.get(name, value) for name, value in bare._kwargs.items()}
    file = io.BytesIO()
    _Pickler(file).dump(bare)
    return file.getvalue()


def has_started(process: BaseProcess) -> None:
    """Frees the memory that `dumps` keeps for a loader's workers after the last has started."""
    arguments = _arguments(process)
    if arguments.get("worker_id", 0) + 1 == arguments.get("num_workers", 1):
        shared_memory.forget(_owner(process))
        _found_for[:] = [None, None]


def _owner(process: BaseProcess) -> object:
    """Returns an object that all workers of one DataLoader iterator share."""
    return _arguments(process).get("done_event", process)


def loads(
    content: bytes, bare: bytes, descriptor: Any, places: list[shared_memory.Place]
) -> BaseProcess:
    """Returns, in a worker, the process that `dumps` was given."""
    process: BaseProcess
    try:
        buffers = shared_memory.take_over(descriptor, places)
        # If this fails, the bare process runs and reports the reason.
        _, process, found, changes = pickle.loads(content, buffers=buffers)
    # The worker runs all the same, without its data set, and reports the error at the first sample,
    # where torch passes it on to the main process.
    except Exception as error:
        return _failing(pickle.loads(bare), error)
    # Batches of the program's classes are pickled by name on their way back, so the names must
    # exist.
    main = sys.modules["__main__"]
    vars(main).update(found)
    sys.modules.setdefault("__mp_main__", main)
    program_state.put(*changes)
    return process


class _Unknown:
    """Stands for a data set that could not be unpickled, and raises the reason at each sample."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError(
            "A DataLoader worker cannot take over the data set, or its functions: "
            f"{type(self._error).__name__}: {self._error}. {ADVICE}"
        ) from self._error

    def __iter__(self) -> Any:
        return self[0]


def _failing(process: Any, error: Exception) -> BaseProcess:
    names = inspect.signature(process._target).parameters
    unknown = {"dataset": _Unknown(error), "collate_fn": list}
    process._args = tuple(unknown.get(n, v) for n, v in zip(names, process._args, strict=False))
    process._kwargs = {name: unknown.get(name, v) for name, v in process._kwargs.items()}
    started: BaseProcess = process
    return started


def _with_file_name(code: types.CodeType) -> tuple[Any, ...]:
    """Reduces code as cloudpickle does, but keeps its file name for tracebacks."""
    function, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    named = (code.co_filename if each == _NAMELESS else each for each in arguments)
    return function, tuple(named)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors and arrays by `shared_memory`, and the program's objects by value."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {types.CodeType: _with_file_name},
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, buffer_callback=self._is_kept)
        self.buffers: list[pickle.PickleBuffer] = []
        """Large buffers, which are handed over in shared memory."""
        self.found: dict[str, Any] = {}
        """Functions and classes of the program, by name."""
        if "__mp_main__" in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])

    def _is_kept(self, buffer: pickle.PickleBuffer) -> bool:
        is_small = buffer.raw().nbytes < shared_memory.MIN_BYTES
        if not is_small:
            self.buffers.append(buffer)
        return is_small

    def reducer_override(self, obj: Any) -> Any:
        """Returns how to pickle an object; NotImplemented for the usual way."""
        if isinstance(obj, torch.Tensor) and obj.device.type == "hpu":
            raise ValueError("it is, or holds, a tensor on the HPU")
        if isinstance(obj, io.TextIOWrapper):
            # cloudpickle would read the whole file.
            raise ValueError("it is an open file")
        if _is_trainer(obj):
            # Lightning, too, leaves the Trainer out when it pickles a module.
            return type(None), ()
        if (reduced := shared_memory.reduce(obj)) is not None:
            return reduced
        if (reduced := _reduce_of_torch(obj)) is not None:
            return reduced
        if isinstance(obj, type) or inspect.isfunction(obj):
            name = obj.__qualname__
            main = sys.modules["__main__"]
            if obj.__module__ in PROGRAM and vars(main).get(name) is obj:
                self.found[name] = obj
            _send_if_unknown(obj.__module__)
        return super().reducer_override(obj)


def _reduce_of_torch(obj: Any) -> tuple[Any, ...] | None:
    """Reduces torch's operators to their names, since torch does not pickle them."""
    if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:
        if sys.modules.get(obj.__name__) is obj:  # torch.ops itself
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, torch._ops._OpNamespace):
            return getattr, (torch.ops, obj.name)
    if isinstance(obj, torch._ops.OpOverloadPacket):
        return _packet, (obj._qualified_op_name,)
    if isinstance(obj, torch._ops.OpOverload):
        return getattr, (obj.overloadpacket, obj._overloadname)
    if isinstance(obj, CustomOpDef):
        return program_state.operator_named, (obj._qualname,)
    return None


def _packet(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)


@functools.cache
def _send_if_unknown(name: str) -> None:
    """Pickles a module by value if it was made at run time, so that no worker can import it."""
    module = sys.modules.get(name)
    if module is None or name in PROGRAM:
        return
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None) if "." in name else None
    finders = (each for each in sys.meta_path if hasattr(each, "find_spec"))
    if all(each.find_spec(name, path, None) is None for each in finders):
        cloudpickle.register_pickle_by_value(module)


def _is_trainer(obj: Any) -> bool:
    return any(t.__module__ in _TRAINERS and t.__name__ == "Trainer" for t in type(obj).__mro__)


def given(process: Any) -> dict[str, Any]:
    """Returns a worker's objects from the program, by the names of DataLoader's arguments."""
    arguments = _arguments(process)
    names = {"dataset": "dataset", "collate_fn": "collate_fn", "worker_init_fn": "init_fn"}
    return {name: arguments[theirs] for name, theirs in names.items() if theirs in arguments}


def _arguments(process: Any) -> dict[str, Any]:
    names = inspect.signature(process._target).parameters
    return {**dict(zip(names, process._args, strict=False)), **process._kwargs}


def _explain(process: Any, error: Exception) -> str:
    """Returns a message on which object does not pickle, and what to do."""
    path, reason = "what it gives its workers", error
    for name, thing in given(process).items():
        if (found := _fails(thing)) is not None:
            path, reason = _innermost(thing, name, found)
            break
    num_workers = _arguments(process).get("num_workers", 1)
    return (
        f"A DataLoader with num_workers={num_workers} cannot start its workers: "
        f"{path} does not pickle ({str(reason).strip().splitlines()[0]}). The process that "
        "holds a card is not forked, since the driver does not survive that, so workers get a "
        "copy. Open files, connections and generators in the worker, at the first __getitem__ or "
        "in worker_init_fn, and keep data sets and functions free of the model; or pass "
        "num_workers=0."
    )


def _fails(obj: Any) -> Exception | None:
    try:
        _Pickler(io.BytesIO()).dump(obj)
    except Exception as error:
        return error
    return None


def _innermost(obj: Any, path: str, error: Exception, depth: int = 0) -> tuple[str, Exception]:
    """Returns the path of the smallest part that does not pickle, and its error."""
    if depth < _MAX_DEPTH:
        for name, part in _parts(obj):
            if (found := _fails(part)) is not None:
                return _innermost(part, path + name, found, depth + 1)
    return path, error


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif isinstance(obj, functools.partial):
        yield from ((".func", obj.func), (".args", obj.args), (".keywords", obj.keywords))
    elif inspect.ismethod(obj):
        yield ".__self__", obj.__self__
    elif inspect.isfunction(obj):
        used = inspect.getclosurevars(obj)
        for name, value in {**used.globals, **used.nonlocals}.items():
            yield f" -> {name}", value
    elif not isinstance(obj, type) and not _is_trainer(obj):
        yield from ((f".{name}", value) for name, value in getattr(obj, "__dict__", {}).items())
