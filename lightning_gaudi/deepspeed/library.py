"""Finds, imports and connects DeepSpeed for the HPU."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from packaging.version import Version

from lightning_gaudi._core import vendor
from lightning_gaudi._patches.apply import require_applied
from lightning_gaudi._patches.deepspeed import check_names, unchanged

_OLDEST = Version("0.19")
_INSTALL = "pip install 'lightning-gaudi[deepspeed]'"
_SELECTOR = "DS_ACCELERATOR"


def check_installed(typed: str = "DeepSpeed") -> None:
    """Raises if DeepSpeed is absent or too old, without importing it.

    Args:
        typed: What needs it, as the user typed it.

    Raises:
        ModuleNotFoundError: It is not installed.
        ImportError: It is too old.
    """
    try:
        found = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(
            f"{typed} needs the package deepspeed, which is not installed. Run: {_INSTALL}.",
            name="deepspeed",
        ) from error
    if Version(found) < _OLDEST:
        raise ImportError(
            f"{typed} needs deepspeed {_OLDEST} or later with torch {torch.__version__}, but "
            f"deepspeed {found} is installed. Run: {_INSTALL}.",
            name="deepspeed",
        )


def load() -> Any:
    """Returns the package `deepspeed`, with the HPU as its accelerator.

    Importing it changes nothing else in the process; see `_patches.deepspeed`.

    Raises:
        ImportError: It is absent, or too old.
        MissingNameError: It is a version that lacks names that we rely on.
        MisconfigurationException: It has been set up for another device.
    """
    check_installed()
    asked = os.environ.get(_SELECTOR, "hpu")
    if asked != "hpu":
        raise MisconfigurationException(
            f"{_SELECTOR}={asked} has DeepSpeed compute on {asked!r}, but the accelerator is "
            f"'hpu'. Unset {_SELECTOR}, or set it to hpu."
        )
    # DeepSpeed imports the vendor's package itself. The facade does so first, and undoes its side
    # effects.
    vendor.package()
    with unchanged():
        os.environ[_SELECTOR] = "hpu"
        package = importlib.import_module("deepspeed")
        accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    if accelerator.device_name() != "hpu":
        raise MisconfigurationException(
            f"deepspeed was imported before there was an HPU, and computes on "
            f"{accelerator.device_name()!r}. Import lightning_gaudi or torch before deepspeed, or "
            f"set {_SELECTOR}=hpu before Python starts."
        )
    require_applied("deepspeed-import")
    check_names()
    return package


def connect(timeout: timedelta | None) -> None:
    """Lets DeepSpeed communicate through the process group that the strategy has initialized.

    Args:
        timeout: How long a collective may take.
    """
    kwargs = {} if timeout is None else {"timeout": timeout}
    load().init_distributed("hccl", auto_mpi_discovery=False, verbose=False, **kwargs)
