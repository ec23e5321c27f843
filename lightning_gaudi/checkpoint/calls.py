"""Checks what a pickle calls its names with, and how much memory the calls may take together.

Each allowed name makes data and nothing else, but some make much out of little: ten characters can
stand for a range or a fraction that does not fit into memory. And torch's own functions believe
what a file says of its tensors: for one that is larger than its storage they would allocate more.
"""

from __future__ import annotations

import codecs
import enum
import re
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, _utils

from .archive import MAX_EXCESS_BYTES
from .errors import ExceededError, RefusedError

_FREE_LENGTH = 64
"""Arguments up to this length are not counted."""

_MIN_COPIED = 2**20
"""How many items the calls of a small pickle may copy; a large one may copy one for each byte."""

_MAX_DIGITS = 4000
"""How many digits a number may have as text; Python's own limit is 4,300 by default."""

_MAX_HASHED = 1000
"""How many parts a key may consist of, such as a tuple of tuples."""

_MAX_ODD_KEYS = 5000
"""How many keys may have a hash that the file's maker can choose, and so make collide."""

_ENCODINGS = ("latin1", "latin-1", "iso-8859-1", "ascii", "utf-8", "utf8")


class Budget:
    """Counts what the calls of one pickle have taken of what they may take.

    Args:
        num_bytes: The length of the pickle.
    """

    def __init__(self, num_bytes: int) -> None:
        self._copied = max(_MIN_COPIED, num_bytes)
        self._expanded_bytes = MAX_EXCESS_BYTES
        self._odd_keys = _MAX_ODD_KEYS

    def copy(self, value: Any) -> None:
        """Counts a value whose items a call copies one by one."""
        if isinstance(value, (torch.TypedStorage, torch.UntypedStorage)):
            return  # tensors share them
        try:
            length = len(value)
        except TypeError:
            return
        # The length of a range may exceed what `len` can return.
        except OverflowError:
            raise ExceededError("a range of more numbers than there is memory") from None
        if isinstance(value, range) and length > _FREE_LENGTH:
            raise ExceededError(f"a range of {length:,} numbers, one by one")
        self._copied -= length if length > _FREE_LENGTH else 0
        if self._copied < 0:
            raise ExceededError("calls that copy more than there is in the file")

    def expand(self, num_bytes: int) -> None:
        """Counts the bytes that a tensor has beyond its storage, as one with a stride of 0."""
        self._expanded_bytes -= max(0, num_bytes)
        if self._expanded_bytes < 0:
            raise ExceededError("tensors that repeat their values to more than the file has")

    def hash(self, key: Any) -> None:
        """Counts a key, or refuses it if hashing it could take for ever."""
        if isinstance(key, str) or key is None:
            return
        left, pending, is_random = _MAX_HASHED, [key], False
        while pending:
            each = pending.pop()
            left -= 1
            if isinstance(each, (tuple, frozenset)):
                pending.extend(each)
            # Python salts the hashes of text and bytes for each process: a key with some in it
            # collides with another by chance alone.
            is_random |= isinstance(each, (str, bytes))
            if left < len(pending):
                raise ExceededError(f"a key of more than {_MAX_HASHED:,} parts")
        # Python hashes a number modulo 2**61 - 1, so smaller whole ones do not collide.
        is_plain = isinstance(key, (int, float)) and abs(key) < 2**61 - 1
        if not is_random and not is_plain and not _is_index(key):
            self._odd_keys -= 1
            if self._odd_keys < 0:
                raise ExceededError(f"more than {_MAX_ODD_KEYS:,} keys that are not text")


def _is_index(key: Any) -> bool:
    """Returns whether a key is a `MetadataIndex` of torch's DCP, which has a text in its hash."""
    if type(key).__name__ != "MetadataIndex":
        return False
    offset = vars(key).get("offset")
    return isinstance(vars(key).get("fqn"), str) and (
        offset is None or (isinstance(offset, torch.Size) and len(offset) <= _FREE_LENGTH)
    )


def check(budget: Budget, function: Any, arguments: Any, keywords: Any = None) -> None:
    """Refuses a call that could take more than the file has, or that no saved data need.

    Args:
        budget: The pickle's.
        function: What a name of the pickle stands for.
        arguments: What it would be called with.
        keywords: By name; only classes that a user allows have some.

    Raises:
        ExceededError: It would take too much.
        RefusedError: Nobody who saves data has written it.
    """
    if not isinstance(arguments, tuple) or not isinstance(keywords or {}, dict):
        raise RefusedError("a call whose arguments are not a tuple")
    for each in (*arguments, *(keywords or {}).values()):
        budget.copy(each)
    if isinstance(function, type) and issubclass(function, (set, frozenset, dict)):
        for each in arguments[:1]:
            _hash_all(
                budget, each, are_pairs=issubclass(function, dict) and function is not Counter
            )
    rule = _rule(function)
    if rule is not None:
        if keywords:
            raise _odd(function)
        rule(budget, function, arguments)


def _hash_all(budget: Budget, items: Any, *, are_pairs: bool) -> None:
    """Counts the keys of a set or a dict that a call is about to make."""
    if isinstance(items, (list, tuple)):
        for each in items:
            if not are_pairs:
                budget.hash(each)
            elif isinstance(each, (list, tuple)) and each:
                budget.hash(each[0])


def _rule(function: Any) -> Callable[[Budget, Any, tuple[Any, ...]], None] | None:
    try:
        found = _RULES.get(function)
    except TypeError:  # it has no hash
        return None
    if found is None and isinstance(function, type):
        if issubclass(function, enum.Enum):
            return _only(1, int, str)
        if issubclass(function, (torch.UntypedStorage, torch.TypedStorage)):
            return _refuse
        if isinstance(function, type(torch.FloatTensor)) or function is Tensor:
            return _only(0)
    if getattr(function, "__module__", None) in _COLLECTIVE:
        return _only(0)
    return found


_COLLECTIVE = ("torch.distributed.device_mesh", "torch.nested._internal.nested_tensor")
"""What torch allows of itself, of which making one connects processes or trusts its sizes."""


def _only(most: int, *kinds: type) -> Callable[[Budget, Any, tuple[Any, ...]], None]:
    """Returns a rule that allows at most so many arguments, all of the given types."""

    def check_kinds(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
        if len(arguments) > most or not all(type(each) in kinds for each in arguments):
            raise _odd(function)
        for each in arguments:
            _check_digits(each)

    return check_kinds


def _check_digits(value: Any) -> None:
    # A decimal digit takes 3.3 bits; converting between text and number is quadratic in the digits.
    digits = value.bit_length() // 3 if isinstance(value, int) else 0
    digits = len(value) if isinstance(value, str) else digits
    if digits > _MAX_DIGITS:
        raise ExceededError(f"a number of some {digits:,} digits")


def _fraction(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    _only(2, int, str)(budget, function, arguments)
    if any(isinstance(each, str) and not _FRACTION.fullmatch(each) for each in arguments):
        raise _odd(function)


_FRACTION = re.compile(r"-?\d+(?:/\d+)?")


def _bytes(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    """Allows the three ways in which bytes are pickled: bytes, text with encoding, numbers."""
    if not arguments:
        return
    is_text = isinstance(arguments[0], str) and len(arguments) == 2
    if is_text and arguments[1] in _ENCODINGS:
        return
    if len(arguments) > 1 or not isinstance(arguments[0], (bytes, bytearray, list, tuple)):
        raise _odd(function)


def _encode(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    if len(arguments) != 2 or not isinstance(arguments[0], str):
        raise _odd(function)
    if arguments[1] not in _ENCODINGS:
        raise _odd(function)


def _refuse(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    raise _odd(function)


def _odd(function: Any) -> RefusedError:
    module, name = getattr(function, "__module__", "?"), getattr(function, "__name__", "?")
    return RefusedError(f"a call of {module}.{name} with arguments that no saved data have")


# Tensors.


def _tensor(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    """Checks `_rebuild_tensor` and its successors, which begin with the same arguments."""
    storage, offset, size, stride, *rest = arguments
    dtype = rest[2] if function is getattr(_utils, "_rebuild_tensor_v3", None) else None
    check_fits(budget, storage, offset, size, stride, dtype)
    # From version 2 on `requires_grad` and hooks follow.
    if len(rest) > 1:
        _check_no_hooks(rest[1])


def _quantized(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    storage, offset, size, stride, _, _, hooks = arguments
    check_fits(budget, storage, offset, size, stride, None)
    _check_no_hooks(hooks)


def check_fits(
    budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, dtype: Any
) -> None:
    """Refuses a tensor that reaches beyond its storage.

    Raises:
        ExceededError: It has, or repeats its values too often.
    """
    if not isinstance(storage, (torch.TypedStorage, torch.UntypedStorage)):
        raise RefusedError("a tensor without a storage")
    if not _are_counts(size) or not _are_counts(stride) or not _are_counts((offset,)):
        raise ExceededError("a tensor with an invalid shape")
    if len(size) != len(stride) or len(size) > _FREE_LENGTH:
        raise ExceededError("a tensor with an invalid shape")
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(storage, "dtype", torch.uint8)
    num_bytes = _num_bytes(storage)
    # The position of the last value, plus one. An empty tensor has none, whatever its strides are.
    extent = 0 if 0 in size else 1
    numel = 1
    for length, step in zip(size, stride, strict=True):
        extent += (length - 1) * step if extent else 0
        numel *= length
    if extent and (offset + extent) * kind.itemsize > num_bytes:
        raise ExceededError(f"a tensor of {tuple(size)} in a storage of {num_bytes:,} bytes")
    budget.expand(numel * kind.itemsize - num_bytes)


def check_old_state(budget: Budget, state: Any) -> None:
    """Refuses a state of a tensor that no old release of torch has saved.

    Raises:
        ExceededError: It has places outside of its storage.
        RefusedError: It has hooks, or is none.
    """
    if not isinstance(state, tuple) or len(state) not in (3, 4, 5):
        raise RefusedError("an invalid state for a tensor")
    if len(state) == 4:
        check_fits(budget, *state, None)
        return
    if len(state) == 5 and not isinstance(state[0], Tensor):
        raise RefusedError("an invalid state for a tensor")
    _check_no_hooks(state[2])


def _num_bytes(storage: Any) -> int:
    untyped = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
    return int(untyped.nbytes())


def _are_counts(values: Any) -> bool:
    return isinstance(values, (tuple, list)) and all(
        type(each) is int and 0 <= each < 2**62 for each in values
    )


def _check_no_hooks(hooks: Any) -> None:
    if hooks:
        raise RefusedError("hooks of a tensor")


def _parameter(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    data, _, hooks, *state = arguments
    if not isinstance(data, Tensor):
        raise _odd(function)
    _check_no_hooks(hooks)
    for each in state:
        check_attributes(each)


def check_attributes(state: Any) -> None:
    """Refuses attributes for a tensor that tensors have already.

    Raises:
        RefusedError: It is no state, or has one of these.
    """
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for each in parts:
        if each and not isinstance(each, dict):
            raise RefusedError("an invalid state for a tensor")
        for name in each or ():
            if not isinstance(name, str) or name.startswith("__") or hasattr(Tensor, name):
                raise RefusedError("a state that would replace a tensor's own attributes")


def _from_cpu(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    """Checks the call that makes a tensor of a device from its copy on the CPU or in NumPy."""
    data = arguments[0]
    if not isinstance(data, Tensor) and type(data).__name__ != "ndarray":
        raise _odd(function)


def _sparse(budget: Budget, function: Any, arguments: tuple[Any, ...]) -> None:
    """Validates the indices of a sparse tensor, which torch by default does not (2.13)."""
    layout, data = arguments
    if layout == torch.sparse_coo:
        indices, values, size = data[:3]
        torch._validate_sparse_coo_tensor_args(indices, values, size)
    else:
        compressed, plain, values, size = data
        torch._validate_sparse_compressed_tensor_args(compressed, plain, values, size, layout)


def is_rebuilding(function: Any) -> bool:
    """Returns whether a function is one of torch's that rebuild a tensor."""
    return _rule(function) in (_tensor, _quantized, _parameter, _from_cpu, _sparse) or (
        function in (_utils._rebuild_meta_tensor_no_storage, _utils._rebuild_wrapper_subclass)
    )


def _torchs() -> Mapping[Any, Callable[[Budget, Any, tuple[Any, ...]], None]]:
    rules = {
        "_rebuild_tensor": _tensor,
        "_rebuild_tensor_v2": _tensor,
        "_rebuild_tensor_v3": _tensor,
        "_rebuild_qtensor": _quantized,
        "_rebuild_parameter": _parameter,
        "_rebuild_parameter_with_state": _parameter,
        "_rebuild_device_tensor_from_cpu_tensor": _from_cpu,
        "_rebuild_device_tensor_from_numpy": _from_cpu,
        "_rebuild_sparse_tensor": _sparse,
        "_rebuild_nested_tensor": _refuse,  # torch computes with its sizes unchecked
    }
    return {getattr(_utils, name): rule for name, rule in rules.items() if hasattr(_utils, name)}


_RULES: dict[Any, Callable[[Budget, Any, tuple[Any, ...]], None]] = {
    bool: _only(1, int, float, str, bool),
    int: _only(2, int, float, str, bool),
    float: _only(1, int, float, str, bool),
    complex: _only(2, int, float, str),
    str: _only(1, str),
    range: _only(3, int),
    bytes: _bytes,
    bytearray: _bytes,
    codecs.encode: _encode,
    Decimal: _only(1, int, str),
    Fraction: _fraction,
    **_torchs(),
}
