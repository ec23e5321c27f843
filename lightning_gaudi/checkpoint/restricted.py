"""Loading files of pickles without running what is in them, unless the user trusts them.

All that we load comes by here: whole checkpoints, what torch's DCP and DeepSpeed have written. A
file holds tensors and plain data, see `plain_types`; one that asks for anything else is refused.
"""

from __future__ import annotations

import inspect
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from lightning_gaudi._core import torchscript
from lightning_gaudi._core.untrusted import printable
from lightning_gaudi.reliability.trust import ADVICE, trusted_by

from .errors import RefusedError, UntrustedCheckpointError
from .manifest import ADVICE as DAMAGED_ADVICE, DamagedCheckpointError
from .unpickler import Unpickler, plain_pickle

_ARCHIVE = b"PK\x03\x04"
"""What torch looks at to tell an archive from its older formats."""

_TORCHSCRIPT = "a program of TorchScript"

_DATA = "data/"
"""What the names of the records of storages begin with."""

File = str | os.PathLike[str] | IO[bytes]


def load(
    file: File,
    *,
    map_location: Any = "cpu",
    mmap: bool | None = None,
    weights_only: bool | None = None,
    name: object = None,
) -> Any:
    """`torch.load` that runs nothing which the file holds.

    Args:
        file: A path, or a binary file that can be read at any position.
        map_location: As for `torch.load`.
        mmap: As for `torch.load`; a file in another format than torch's archive is read.
        weights_only: False trusts the file: code that it holds may run. None for what the strategy
            or the environment says.
        name: What to call the file in messages, where it is not `file` itself.

    Raises:
        UntrustedCheckpointError: The file holds something else than tensors and plain data.
        DamagedCheckpointError: It is damaged, or is none of torch's.
        OSError: It cannot be read.
    """
    options: dict[str, Any] = {"map_location": map_location, "mmap": mmap}
    if trusted_by(weights_only) is not None:
        options["mmap"] = mmap and zipfile.is_zipfile(file)
        return _loader(torch.load, map_location)(file, weights_only=False, **options)
    return _load_plainly(_loader(torch.load, map_location), file, options, name)


def load_pickle(path: Path) -> Any:
    """`pickle.load` that runs nothing which the file holds; see `load`."""
    with path.open("rb") as file:
        if trusted_by() is not None:
            return pickle.load(file)
        with explained(str(path)):
            return Unpickler(file).load()


def instead_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `torch.load` that runs nothing, whatever its caller asks for: for libraries that trust.

    Args:
        original: The one that it calls.
    """

    def load_restricted(f: File, map_location: Any = None, **options: Any) -> Any:
        load_with = _loader(original, map_location)
        if trusted_by() is not None:
            return load_with(f, map_location, **options)
        return _load_plainly(load_with, f, {"map_location": map_location, **options}, None)

    return load_restricted


def _load_plainly(
    load_with: Callable[..., Any], file: File, options: dict[str, Any], name: object
) -> Any:
    """Calls a `torch.load` with our unpickler, on the very file whose kind was looked at."""
    refusal = RefusedError(_TORCHSCRIPT)
    with (
        explained(_shown(name or file)),
        _opened(file) as opened,
        torchscript.unreachable(refusal),
    ):
        found = _look_at(opened)
        options |= _plainly(found.storage_bytes)
        if not options.get("mmap"):
            return load_with(opened, **options)
        if not found.is_archive or not hasattr(opened, "fileno"):
            return load_with(opened, **(options | {"mmap": False}))
        # Torch maps what has a path: this is one of the open file, whatever its name is by now.
        return load_with(f"/proc/self/fd/{opened.fileno()}", **options)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Says of what is refused or damaged which file it was, and what to do.

    Args:
        name: The file's.

    Raises:
        UntrustedCheckpointError: In place of a `RefusedError`.
        DamagedCheckpointError: In place of what a damaged file makes of its readers.
    """
    try:
        yield
    except RefusedError as error:
        raise UntrustedCheckpointError(
            f"{printable(name)} was not loaded: it holds {printable(error, max_chars=300)}, which "
            "is neither a tensor nor plain data, and a checkpoint could have it run any code. "
            "Nothing of it has run. For a class of your own, call "
            "torch.serialization.add_safe_globals([TheClass]) first, or save plain data instead. "
            f"If you trust who made the file, {ADVICE}, or pass weights_only=False where it is "
            "loaded."
        ) from None
    except (DamagedCheckpointError, UntrustedCheckpointError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it cannot be opened
        if str(error).startswith("Weights only load failed"):  # torch's own unpickler was forced
            text = printable(error, lines=True)
            raise UntrustedCheckpointError(f"{printable(name)} was not loaded: {text}") from error
        raise DamagedCheckpointError(
            f"{printable(name)} is truncated or damaged, or no checkpoint ({type(error).__name__}: "
            f"{printable(error, max_chars=300)}). {DAMAGED_ADVICE}"
        ) from error


@contextmanager
def _opened(file: File) -> Iterator[IO[bytes]]:
    if not isinstance(file, (str, os.PathLike)):
        yield file
        return
    with Path(file).open("rb") as opened:
        yield opened


def _shown(file: object) -> str:
    is_path = isinstance(file, (str, os.PathLike))
    return str(file if is_path else getattr(file, "name", "The file"))


def _loader(loader: Callable[..., Any], map_location: Any) -> Callable[..., Any]:
    """Torch's own `torch.load`, or the vendor's of lazy mode where values go to a device.

    The vendor's calls a function for `map_location` with a tensor and a device, where torch has a
    storage and a text (bridge 1.24.0, `core/torch_overwrites.py`).
    """
    is_function = map_location is None or callable(map_location)
    return inspect.unwrap(loader) if is_function else loader


def _plainly(storage_bytes: Mapping[str, int] | int) -> dict[str, Any]:
    """What to tell `torch.load`, which takes no unpickler where this variable forces its own."""
    if os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true"):
        return {"weights_only": True}
    return {"weights_only": False, "pickle_module": plain_pickle(storage_bytes)}


class _Kind(NamedTuple):
    """What a file is, as torch would read it."""

    is_archive: bool
    storage_bytes: Mapping[str, int] | int
    """See `Unpickler.storage_bytes`."""


def _look_at(file: IO[bytes]) -> _Kind:
    """Refuses what `torch.load` would not read with our unpickler.

    Raises:
        RefusedError: It is a program of TorchScript, an archive that claims to hold more than it
            has, or a file as of torch 0.1.
        RuntimeError: It is an archive that torch cannot read.
    """
    start = file.tell()
    try:
        num_bytes = file.seek(0, os.SEEK_END) - start
        file.seek(start)
        is_archive = file.read(4) == _ARCHIVE
        file.seek(start)
        if is_archive:
            return _Kind(True, _records(file, num_bytes))
        if tarfile.is_tarfile(file):
            raise RefusedError("a tar archive")
        return _Kind(False, num_bytes)
    finally:
        file.seek(start)


def _records(file: IO[bytes], num_bytes: int) -> dict[str, int]:
    """Returns how long each storage of an archive is, by its key, as torch's own reader has it.

    Other readers of zip files may see other records in the same bytes.
    """
    reader = torch._C.PyTorchFileReader(file)
    names = reader.get_all_records()
    if any(name.rpartition("/")[2].lower() == "constants.pkl" for name in names):
        raise RefusedError(_TORCHSCRIPT)
    sizes = {name: _size(reader, name) for name in {*names}}
    if sum(sizes.values()) > num_bytes:
        raise RefusedError(
            f"records of {sum(sizes.values()):,} bytes in a file of {num_bytes:,}: an archive that "
            "is compressed, or that has several records in the same place"
        )
    return {
        name.removeprefix(_DATA): size for name, size in sizes.items() if name.startswith(_DATA)
    }


def _size(reader: Any, name: str) -> int:
    if hasattr(reader, "get_record_size"):
        return int(reader.get_record_size(name))
    return len(reader.get_record(name))  # torch 2.6
