"""Pickle what a worker of a DataLoader needs, as far as a fork would have handed it over.

Functions and classes of the program itself, and those that have no address (lambdas, local ones),
are pickled by value: no worker runs the program again to find them, so it needs no
`if __name__ == "__main__"`, and a notebook may define them.
"""

from __future__ import annotations

import functools
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

from . import worker_memory

_MAX_DEPTH = 8
_PROGRAM = ("__main__", "__mp_main__")  # the second in what multiprocessing has spawned
_NAMELESS = "<dynamic-code>"
"""What cloudpickle calls the file of any code."""
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def dumps(process: BaseProcess) -> tuple[bytes, Any, list[worker_memory.Place]]:
    """Pickle a process that is about to start, to what `loads` takes.

    Args:
        process: Its target's arguments are what a DataLoader gives its workers.

    Raises:
        ValueError: Something does not pickle; the message says what.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((process, pickler.found))
    except Exception as error:
        raise ValueError(_explain(process, error)) from error
    memory = worker_memory.memory_of(_owner(process))
    return file.getvalue(), *memory.hand_over(pickler.buffers)


def has_started(process: BaseProcess) -> None:
    """Free what `dumps` keeps for the workers of a loader, after the last."""
    arguments = _arguments(process)
    if arguments.get("worker_id", 0) + 1 == arguments.get("num_workers", 1):
        worker_memory.forget(_owner(process))


def _owner(process: BaseProcess) -> object:
    """One object for all workers of an iterator of a DataLoader, and for it alone."""
    return _arguments(process).get("done_event", process)


def loads(content: bytes, descriptor: Any, places: list[worker_memory.Place]) -> BaseProcess:
    """In a worker, the process that `dumps` was given."""
    process: BaseProcess
    process, found = pickle.loads(content, buffers=worker_memory.take_over(descriptor, places))
    # Let this worker's batches be of the program's classes: they go back by name.
    main = sys.modules["__main__"]
    vars(main).update(found)
    sys.modules.setdefault("__mp_main__", main)
    return process


def _with_file_name(code: types.CodeType) -> tuple[Any, ...]:
    """Reduces code as cloudpickle does, but for its file's name, which a traceback shows."""
    function, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    named = (code.co_filename if each == _NAMELESS else each for each in arguments)
    return function, tuple(named)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors and arrays as `worker_memory` does, and what is the program's by value."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {types.CodeType: _with_file_name},
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, buffer_callback=self._is_kept)
        self.buffers: list[pickle.PickleBuffer] = []
        """What does not go to the file."""
        self.found: dict[str, Any] = {}
        """Functions and classes of the program, by name."""
        if "__mp_main__" in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])

    def _is_kept(self, buffer: pickle.PickleBuffer) -> bool:
        is_small = buffer.raw().nbytes < worker_memory.MIN_BYTES
        if not is_small:
            self.buffers.append(buffer)
        return is_small

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object; NotImplemented for the usual way."""
        if isinstance(obj, torch.Tensor) and obj.device.type == "hpu":
            raise ValueError("it is, or holds, a tensor on the HPU")
        if isinstance(obj, io.TextIOWrapper):
            raise ValueError("it is an open file")  # cloudpickle would read all of it
        if _is_trainer(obj):
            return type(None), ()  # as Lightning pickles a module
        if (reduced := worker_memory.reduce(obj)) is not None:
            return reduced
        if isinstance(obj, type) or inspect.isfunction(obj):
            name = obj.__qualname__
            main = sys.modules["__main__"]
            if obj.__module__ in _PROGRAM and vars(main).get(name) is obj:
                self.found[name] = obj
        return super().reducer_override(obj)


def _is_trainer(obj: Any) -> bool:
    return any(t.__module__ in _TRAINERS and t.__name__ == "Trainer" for t in type(obj).__mro__)


def given(process: Any) -> dict[str, Any]:
    """What a process for a worker is given by the program, by the names of a DataLoader."""
    arguments = _arguments(process)
    names = {"dataset": "dataset", "collate_fn": "collate_fn", "worker_init_fn": "init_fn"}
    return {name: arguments[theirs] for name, theirs in names.items() if theirs in arguments}


def _arguments(process: Any) -> dict[str, Any]:
    names = inspect.signature(process._target).parameters
    return {**dict(zip(names, process._args, strict=False)), **process._kwargs}


def _explain(process: Any, error: Exception) -> str:
    """What does not pickle, and what to do."""
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
    """The smallest part that does not pickle, as the program would write it, and why."""
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
