"""Which torch this is."""

import torch
from packaging.version import Version

from ..._missing import missing


def is_pytorch_older_than(version: str) -> bool:
    """Tells whether torch is older than a version, without regard to what its build adds to it."""
    return Version(Version(torch.__version__).base_version) < Version(version)


__getattr__ = missing(__name__)
