"""The names that the pickle of a checkpoint may ask for, beside those of tensors.

All of them stand for data. None of them runs its arguments, reads or writes a file, or looks up
another name, except for the member of an enumeration.
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
    """Stands for `getattr`, by which early releases of Python 3.11 pickle an enumeration's member.

    Source: CPython's pull request 26658; so in 3.11.2, not in 3.11.7 (`Enum.__reduce_ex__`).

    Raises:
        RefusedError: It is asked for anything else than a member.
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
"""Plain values that hyperparameters and callbacks hold; Python 3.13 moved paths to `_local`."""

_NUMPY: dict[str, Any] = {
    "numpy.dtype": numpy_values.dtype,
    # Pickled as the first argument of `_reconstruct`, which our function ignores.
    "numpy.ndarray": None,
    **dict.fromkeys(
        ("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct"),
        numpy_values.empty_array,
    ),
    **dict.fromkeys(
        ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar"), numpy_values.scalar
    ),
}
"""NumPy's names and what stands for them here; up to NumPy 1 the module was `numpy.core`."""

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
"""Names whose objects may be given a state by BUILD; the others get theirs from arguments."""


def find(name: str) -> tuple[Any, bool]:
    """Returns the object that a name in a pickle stands for.

    Args:
        name: With its module, as in `collections.OrderedDict`.

    Returns:
        The object, and whether its instances may be given a state. Those of torch's list may not.

    Raises:
        LookupError: A checkpoint may not ask for it.
    """
    torchs = _weights_only_unpickler._get_allowed_globals()
    if name in torchs:
        return torchs[name], False
    # Looked up after torch's own list, whose objects take no state whatever the user allows.
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
