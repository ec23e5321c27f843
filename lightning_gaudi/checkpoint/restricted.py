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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from lightning_gaudi.reliability.trust import ADVICE, trusted_by

from .errors import RefusedError, UntrustedCheckpointError
from .unpickler import PLAIN_PICKLE, Unpickler

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
        mmap: As for `torch.load`.
        weights_only: False trusts the file: code that it holds may run. None for what the strategy
            or the environment says.
        name: What to call the file in messages, where it is not `file` itself.

    Raises:
        UntrustedCheckpointError: The file holds something else than tensors and plain data.
        Exception: What `torch.load` raises of a file that is damaged, or none.
    """
    load_with = _loader(torch.load, map_location)
    options: dict[str, Any] = {"map_location": map_location, "mmap": mmap}
    if trusted_by(weights_only) is not None:
        return load_with(file, weights_only=False, **options)
    with explained(_shown(name or file)):
        _check_kind(file)
        return load_with(file, **options, **_plainly())


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
        with explained(_shown(f)):
            _check_kind(f)
            return load_with(f, map_location, **(options | _plainly()))

    return load_restricted


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Say of a refusal which file it was, and what to do.

    Args:
        name: The file's.

    Raises:
        UntrustedCheckpointError: In place of a `RefusedError`.
    """
    try:
        yield
    except RefusedError as error:
        raise UntrustedCheckpointError(
            f"{name} was not loaded: it holds {error}, which is neither a tensor nor plain data, "
            "and a checkpoint could have it run any code. Nothing of it has run. For a class of "
            "your own, call torch.serialization.add_safe_globals([TheClass]) first, or save plain "
            f"data instead. If you trust who made the file, {ADVICE}, or pass "
            "weights_only=False where it is loaded."
        ) from None


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


def _plainly() -> dict[str, Any]:
    """What to tell `torch.load`, which takes no unpickler where this variable forces its own."""
    if os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true"):
        return {"weights_only": True}
    return {"weights_only": False, "pickle_module": PLAIN_PICKLE}


def _check_kind(file: File) -> None:
    """Refuse what `torch.load` would not read with our unpickler.

    Raises:
        RefusedError: It is an archive of TorchScript, or one as of torch 0.1.
    """
    if isinstance(file, (str, os.PathLike)):
        if not str(file).endswith(".safetensors"):
            with Path(file).open("rb") as opened:
                _check_kind(opened)
        return
    start = file.tell()
    try:
        if file.read(4) == b"PK\x03\x04":
            file.seek(start)
            _check_zip(file)
        else:
            file.seek(start)
            if tarfile.is_tarfile(file):
                raise RefusedError("a tar archive")
    finally:
        file.seek(start)


def _check_zip(file: IO[bytes]) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return  # torch says so
    if any(name.rpartition("/")[2] == "constants.pkl" for name in names):
        raise RefusedError("a program of TorchScript")
