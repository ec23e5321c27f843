"""Loads pickled files without running what is in them, unless the user trusts them.

Everything that we load passes through here: whole checkpoints, and what torch's DCP and DeepSpeed
have written. A file may hold tensors and plain data (see `plain_types`); one that asks for anything
else is refused.

An untrusted file is not given to `torch.load`, which runs an archive that is a TorchScript program.
It is opened once, and read by the functions that `torch.load` calls for tensors, which know nothing
of programs. What this process has written itself may hold more (see `own_pickles`).
"""

from __future__ import annotations

import inspect
import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import torch
from torch import Tensor

from lightning_gaudi._core import own_pickles
from lightning_gaudi.reliability.settings import ADVICE, trusted_by
from lightning_gaudi.untrusted import printable

from .archive import open_archive
from .errors import DamagedCheckpointError, ExceededError, RefusedError, UntrustedCheckpointError
from .opening import address_of, mapped, open_regular
from .storages import Source
from .unpickler import Unpickler, bounded, pickle_module

File = str | os.PathLike[str] | IO[bytes]


def load(
    file: File,
    *,
    map_location: Any = "cpu",
    mmap: bool | None = None,
    weights_only: bool | None = None,
    name: object = None,
) -> Any:
    """Loads as `torch.load` does, and runs nothing that the file holds.

    Args:
        file: A path, or a binary file that can be read at any position.
        map_location: As for `torch.load`.
        mmap: Whether the tensors of an archive stay in the file until they are used.
        weights_only: False trusts the file: code that it holds may run. None for what the strategy
            or the environment says, and what this process has written itself may hold more.
        name: What to call the file in messages, where it is not `file` itself.

    Raises:
        UntrustedCheckpointError: The file holds something else than tensors and plain data.
        DamagedCheckpointError: It is no file that `torch.save` writes, or claims to hold more than
            it does.
        OSError: It cannot be read.
    """
    is_path = isinstance(file, (str, os.PathLike))
    if trusted_by(weights_only) is not None:
        # `torch.load` maps a file only if it gets a path.
        source = address_of(file) if mmap and not is_path else file
        load_with = _loader(torch.load, map_location)
        return load_with(source, map_location=map_location, weights_only=False, mmap=mmap)
    shown = _shown(name or file)
    try:
        with explained(shown), _opened(file) as opened:
            if shown.endswith(".safetensors"):
                return _load_safetensors(opened, map_location)
            takes_own = weights_only is None
            return _load_plainly(opened, map_location, mmap=bool(mmap), takes_own=takes_own)
    except _PlacingError as error:
        raise error.cause from None


def load_pickle(path: Path) -> Any:
    """Loads as `pickle.load` does, and runs nothing that the file holds; see `load`."""
    with explained(str(path)), open_regular(path) as file:
        if trusted_by() is not None:
            return pickle.load(file)
        return Unpickler(file).load()


def instead_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `torch.load` that runs nothing, whatever `weights_only` says, for other libraries.

    Args:
        original: The function that it calls where files are trusted.
    """

    def load_restricted(f: File, map_location: Any = None, **options: Any) -> Any:
        if trusted_by() is not None:
            return _loader(original, map_location)(f, map_location, **options)
        return load(f, map_location=map_location, mmap=options.get("mmap"), weights_only=True)

    return load_restricted


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Adds to an error which file it is about, and what to do.

    Args:
        name: The file's.

    Raises:
        UntrustedCheckpointError: In the place of a `RefusedError`.
        DamagedCheckpointError: In the place of any other error but those of the system.
    """
    shown = printable(name)
    try:
        yield
    except RefusedError as error:
        raise UntrustedCheckpointError(
            f"{shown} was not loaded: it holds {printable(error, max_chars=500)}, which is neither "
            "a tensor nor plain data, and loading it could run any code. Nothing of it "
            "has run. For a class of your own, call "
            "torch.serialization.add_safe_globals([TheClass]) first, or save plain data instead. "
            f"If you trust who made the file, {ADVICE}, or pass weights_only=False where it is "
            "loaded."
        ) from None
    except (DamagedCheckpointError, UntrustedCheckpointError, _PlacingError, ImportError):
        raise
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except ExceededError as error:
        raise DamagedCheckpointError(
            f"{shown} is damaged, or made to exhaust this machine: it claims "
            f"{printable(error, max_chars=500)}. Nothing of it was kept. Use another checkpoint."
        ) from None
    except Exception as error:
        # An OSError with a number comes from the system and says nothing against the file.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = printable(error, max_chars=500) or type(error).__name__
        raise DamagedCheckpointError(
            f"{shown} is no checkpoint, or truncated or damaged ({reason}). Use another one, or "
            "copy it again from where it was saved."
        ) from error


def _shown(file: object) -> str:
    is_path = isinstance(file, (str, os.PathLike))
    return str(file if is_path else getattr(file, "name", "The file"))


def _opened(file: Any) -> Any:
    """Opens a path's file; an open file is passed through, and stays open."""
    is_path = isinstance(file, (str, os.PathLike))
    return open_regular(file) if is_path else nullcontext(file)


def _loader(loader: Callable[..., Any], map_location: Any) -> Callable[..., Any]:
    """Returns torch's own `torch.load`, or the vendor's of lazy mode where values go to a device.

    The vendor's calls a function for `map_location` with a tensor and a device, where torch has a
    storage and a text (bridge 1.24.0, `core/torch_overwrites.py`).
    """
    is_function = map_location is None or callable(map_location)
    return inspect.unwrap(loader) if is_function else loader


class _PlacingError(Exception):
    """Carries an error of a user's `map_location` past `explained`, which blames the file."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def _load_plainly(file: IO[bytes], map_location: Any, *, mmap: bool, takes_own: bool) -> Any:
    """Loads an archive, or a file as torch wrote them before 1.6."""
    # In lazy mode the vendor's `torch.load` loads onto the CPU and moves the values afterwards. The
    # functions that are called here lie below it, so both steps are done by us.
    is_lazy = hasattr(torch.load, "__wrapped__") and not callable(map_location)
    location = "cpu" if is_lazy and map_location is not None else map_location
    found = _read(file, _marking(location), mmap=mmap, takes_own=takes_own)
    return _moved(found, map_location) if location is not map_location else found


def _read(file: IO[bytes], location: Any, *, mmap: bool, takes_own: bool) -> Any:
    start = file.tell()
    is_archive = file.read(4) == b"PK\x03\x04"
    file.seek(start)
    if not is_archive:
        return _read_old(file, location)
    reader, directory = open_archive(file)
    # Mapped, the bytes of a compressed record would be taken for its values.
    mmap = mmap and directory.is_stored
    if _is_forced():
        file.seek(start)
        return _load_by_torchs(address_of(file) if mmap else file, location, mmap=mmap)
    module = pickle_module(Source(0, directory.sizes))
    storage = mapped(file) if mmap else None
    # What `torch.load` calls for an archive (2.6 to 2.13).
    load_archive: Any = torch.serialization._load
    try:
        return load_archive(reader, location, module, overall_storage=storage, encoding="utf-8")
    # The usual pickle passes the first time. Only one that was refused is compared with our own.
    except RefusedError:
        if not takes_own or not own_pickles.is_own(reader.get_record("data.pkl")):
            raise
    return load_archive(reader, location, _OWN_PICKLE, overall_storage=storage, encoding="utf-8")


class _OwnUnpickler(pickle.Unpickler):
    """Python's unpickler, for pickles that this process has written."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        # Compared again: the file may have changed between the look at it and this reading, so what
        # is loaded is what was compared.
        data = file.read()
        if not own_pickles.is_own(data):
            raise RefusedError("another pickle than a moment ago")
        super().__init__(BytesIO(data), **options)


_OWN_PICKLE = ModuleType("_own_pickle", "The pickle module, for what this process has written.")
_OWN_PICKLE.__dict__.update(vars(pickle), __name__="_own_pickle", Unpickler=_OwnUnpickler)


def _read_old(file: IO[bytes], location: Any) -> Any:
    start = file.tell()
    # `torch.load` extracts a tar archive to a folder, as the oldest releases wrote them.
    if tarfile.is_tarfile(file):
        raise RefusedError("a tar archive")
    file.seek(start)
    whole = bounded(file)
    if _is_forced():
        return _load_by_torchs(file, location, mmap=False)
    module = pickle_module(Source(whole.num_bytes, None))
    load_old: Any = torch.serialization._legacy_load
    return load_old(whole, location, module, encoding="utf-8")


def _load_safetensors(file: IO[bytes], map_location: Any) -> Any:
    """Loads a safetensors file, as `torch.load` does for a path with this suffix (2.13)."""
    from safetensors.torch import load_file

    is_named = isinstance(map_location, (str, torch.device))
    return load_file(address_of(file), device=str(map_location) if is_named else "cpu")


def _is_forced() -> bool:
    """Returns whether the environment makes torch refuse any unpickler but its own."""
    variable = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower()
    return variable in ("1", "y", "yes", "true")


def _load_by_torchs(source: Any, location: Any, *, mmap: bool) -> Any:
    """Loads by torch's own unpickler, which refuses TorchScript programs, too."""
    try:
        return torch.load(source, map_location=location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UntrustedCheckpointError(printable(error, lines=True)) from None


def _marking(map_location: Any) -> Any:
    """Returns `map_location`; the errors of a function become `_PlacingError`."""
    if not callable(map_location):
        return map_location

    def place(storage: Any, location: str) -> Any:
        try:
            return map_location(storage, location)
        except Exception as error:
            raise _PlacingError(error) from error

    return place


def _moved(value: Any, map_location: Any) -> Any:
    """Moves what was loaded onto the CPU to where the vendor's `torch.load` would put it."""
    target = map_location.get("cpu", "cpu") if isinstance(map_location, dict) else map_location
    if str(target) == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(target)
    if isinstance(value, dict):
        return {key: _moved(each, target) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, target) for each in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(_moved(each, target) for each in value)
    return value
