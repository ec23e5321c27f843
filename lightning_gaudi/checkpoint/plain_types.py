"""What a checkpoint may hold beside tensors: the names that its pickle may ask for.

All of it is data. None of these names runs what it is given, reads or writes a file, or finds
another name by what it is given, but for the member of an enumeration.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch
from torch import _weights_only_unpickler

from . import numpy_values
from .errors import RefusedError


def _member(kind: Any, name: Any, *default: Any) -> Enum:
    """Returns an enumeration's member, which early releases of Python 3.11 pickle by name.

    Source: CPython's pull request 26658; so in 3.11.2, not in 3.11.7 (`Enum.__reduce_ex__`).

    Raises:
        RefusedError: It is another attribute, or one of something else.
    """
    members = kind.__members__ if isinstance(kind, type) and issubclass(kind, Enum) else {}
    if default or not isinstance(name, str) or name not in members:
        raise RefusedError("builtins.getattr")
    return members[name]


_PYTHON = (
    "argparse.Namespace",
    "builtins.bool",
    "builtins.bytes",
    "builtins.dict",
    "builtins.float",
    "builtins.frozenset",
    "builtins.int",
    "builtins.list",
    "builtins.range",
    "builtins.slice",
    "builtins.str",
    "builtins.tuple",
    "collections.defaultdict",
    "collections.deque",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.PureWindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.PurePosixPath",
    "pathlib._local.PureWindowsPath",
    "uuid.UUID",
)
"""Plain values that hyperparameters and callbacks have; some are a module deeper in 3.13."""

_NUMPY: dict[str, Any] = {
    "numpy.dtype": numpy_values.dtype,
    "numpy.ndarray": None,  # an argument of the next
    **dict.fromkeys(
        ("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct"),
        numpy_values.empty_array,
    ),
    **dict.fromkeys(
        ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar"), numpy_values.scalar
    ),
}
"""Numbers and arrays, and what makes them here; the module has another name up to NumPy 1."""

_LIGHTNING = (
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
)

_DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
"""What DeepSpeed's engine saves of itself. Source: deepspeed 0.19.8."""

_DCP = (
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
)
"""What the file `.metadata` of a folder of shards consists of. Source: torch 2.13."""

_NAMES = frozenset((*_PYTHON, *_LIGHTNING, *_DEEPSPEED, *_DCP))

_STATEFUL = frozenset(("argparse.Namespace", "uuid.UUID", *_LIGHTNING, *_DEEPSPEED, *_DCP))
"""Those whose objects are given a state when they are loaded; the others are made with theirs."""


def find(name: str) -> tuple[Any, bool]:
    """Returns what a name of a pickle stands for.

    Args:
        name: With its module, as in `collections.OrderedDict`.

    Returns:
        That, and whether objects of it may be given a state. Torch's are not.

    Raises:
        LookupError: A checkpoint may not ask for it.
    """
    torchs = _weights_only_unpickler._get_allowed_globals()
    if name in torchs:
        return torchs[name], False
    users = _named(torch.serialization.get_safe_globals())
    if name in users:
        return users[name], True
    if name in _NUMPY:
        return _NUMPY[name], False
    if name == "builtins.getattr":
        return _member, False
    if name not in _NAMES:
        raise LookupError(name)
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute), name in _STATEFUL
    except (ImportError, AttributeError) as error:
        raise LookupError(name) from error


def _named(allowed: Iterable[Any]) -> dict[str, Any]:
    """Returns what the user has given to `torch.serialization.add_safe_globals`, by name."""
    return {
        each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}": (
            each[0] if isinstance(each, tuple) else each
        )
        for each in allowed
    }
