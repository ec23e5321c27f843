"""Writes Chrome traces and stacks at once or not at all, and checks their content."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem

from lightning_gaudi._core.whole_file import put_whole

# The categories of an event of the device, Kineto's and those of the vendor's writer (1.19).
_DEVICE_EVENT = re.compile(
    rb'"cat"\s*:\s*"(?:kernel|hpu_op|(?:gpu_)?mem(?:cpy|set))"', re.IGNORECASE
)
_CHUNK_BYTES = 1 << 22


def save_trace(profile: Any, target: str) -> bool:
    """Writes the trace of torch's profiler to `target`, and returns whether a device is in it.

    Raises:
        OSError: It cannot be written.
    """
    return _save(lambda path: _export(profile, path), target, holds_device_events)


def save_stacks(profile: Any, target: str, key: str) -> bool:
    """Writes stacks for a flame graph, one on each line, and returns whether there are any.

    Args:
        profile: Torch's profiler.
        target: Path or URL of the file.
        key: The attribute of torch's events that weighs the stacks; "hpu" in it means the device.

    Raises:
        OSError: It cannot be written.
    """
    # `export_stacks` accepts only the attribute's names for CUDA and XPU, though it holds for any
    # device.
    name = key.replace("hpu", "cuda")
    return _save(
        lambda path: profile.export_stacks(str(path), name), target, lambda p: p.stat().st_size > 0
    )


def holds_device_events(trace: Path) -> bool:
    """Returns whether a Chrome trace has events of a device."""
    rest = b""
    # Searched and not parsed, since a trace may have hundreds of megabytes.
    with trace.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if _DEVICE_EVENT.search(rest + chunk):
                return True
            # A match may begin in one chunk and end in the next.
            rest = chunk[-64:]
    return False


def _save(export: Callable[[Path], None], target: str, look: Callable[[Path], bool]) -> bool:
    """Lets `export` write a file, moves it to `target`, and returns the result of `look`."""
    with tempfile.TemporaryDirectory() as folder:
        # torch decides by the suffix of the name whether to compress the file.
        exported = Path(folder, Path(target).name)
        export(exported)
        if _is_local_file_protocol(target):
            folder_of_target = Path(target).parent
            with _said_of(target, f": {folder_of_target}"):
                folder_of_target.mkdir(parents=True, exist_ok=True)
            with exported.open("rb") as source, _said_of(target), put_whole(Path(target)) as file:
                shutil.copyfileobj(source, file)
        else:
            get_filesystem(target).put_file(str(exported), target)
        return look(exported)


def _export(profile: Any, target: Path) -> None:
    """Lets torch write the trace, and raises if that failed, which torch does not report."""
    target.touch()
    try:
        profile.export_chrome_trace(str(target))
    # The vendor's profiler reads again what torch has written, and fails if that was cut short.
    except RuntimeError as error:
        raise OSError(f"Could not export the trace to {target.parent}: {error}") from error
    with target.open("rb") as file:
        file.seek(max(0, target.stat().st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            free_mib = shutil.disk_usage(target.parent).free / 2**20
            raise OSError(
                f"Could not export the trace to {target.parent}, where {free_mib:.1f} MiB are "
                "free: it was cut short. Set TMPDIR to a folder with more space."
            )


@contextmanager
def _said_of(target: str, place: str = "") -> Iterator[None]:
    """Names the target in an error of the block, and a place where another one is meant."""
    try:
        yield
    except OSError as error:
        message = f"Could not save {target}: {error.strerror}{place}"
        raise OSError(error.errno, message) from error
