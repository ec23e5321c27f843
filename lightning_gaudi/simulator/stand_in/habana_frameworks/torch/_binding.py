"""Gives the stand-in the simulated device's C++ extension, loaded on first use."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch  # noqa: F401  (at its end torch loads its backends, and so the simulator)


def _load() -> ModuleType:
    if "_hpu_sim" not in sys.modules:
        _activate()
    try:
        return importlib.import_module("_hpu_sim")
    except ImportError as error:
        raise ImportError(
            "This habana_frameworks stands in for the vendor's on a simulated HPU, and the "
            "simulator is not active. Set LIGHTNING_GAUDI_SIMULATE=1 before torch is imported, or "
            "start the program with `lightning-gaudi simulate -- command`. On a Gaudi server, "
            "install the vendor's package and take this folder off sys.path."
        ) from error


def _activate() -> None:
    from lightning_gaudi import simulator

    if simulator.is_requested():
        simulator.activate()


C = _load()
"""The extension module `_hpu_sim`."""
