"""Registers `torch.compile(backend="hpu_backend")` when torch's compiler is first imported.

Importing the compiler takes a second, which a program that compiles nothing does not pay.
"""

import importlib
from typing import Any

from ..._missing import missing
from .. import _on_import

__all__: list[str] = []
_missing = missing(__name__)


def __getattr__(name: str) -> Any:
    if name == "HpuInterface":
        return importlib.import_module(f"{__name__}.device_interface").HpuInterface
    return _missing(name)


_on_import.call_after("torch._dynamo.backends.registry", __name__ + ".compile_backend")
_on_import.call_after("torch._dynamo.device_interface", __name__ + ".device_interface")
