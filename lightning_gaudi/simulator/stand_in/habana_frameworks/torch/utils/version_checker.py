"""Compares the version of torch."""

import torch
from packaging.version import Version

from ..._missing import missing


def is_pytorch_older_than(version: str) -> bool:
    """Returns whether torch is older than a version, whatever its build adds to its own."""
    return Version(Version(torch.__version__).base_version) < Version(version)


__getattr__ = missing(__name__)
