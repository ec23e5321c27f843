"""Reads which release of the Gaudi software stands in, and in which mode it starts."""

from __future__ import annotations

import functools
import os

from lightning_gaudi.releases import Release
from lightning_gaudi.simulator.settings import read_release


@functools.cache
def release() -> Release:
    """Returns the release named by LIGHTNING_GAUDI_SIMULATE_RELEASE, read once."""
    return read_release()


@functools.cache
def is_lazy() -> bool:
    """Returns whether operations are gathered into graphs (lazy mode); read once.

    Source: `PT_HPU_LAZY_MODE`; "1" is the default up to release 1.20, "0" since 1.21.
    """
    return (os.environ.get("PT_HPU_LAZY_MODE") or str(int(release().is_lazy))) != "0"
