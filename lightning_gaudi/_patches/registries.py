"""Our names in Lightning's registries; the classes are imported when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any

from .apply import enter

STRATEGIES = {
    "hpu_single": "SingleHPUStrategy",
    "hpu_ddp": "HPUDDPStrategy",
    "hpu_parallel": "HPUDDPStrategy",
    "hpu_deepspeed": "HPUDeepSpeedStrategy",
    "hpu_fsdp": "HPUFSDPStrategy",
    "hpu_model_parallel": "HPUModelParallelStrategy",
}
"""The names for `strategy`, and our classes. `"hpu_parallel"` is the one of older projects."""

_WITHOUT_NAME_IN_FABRIC = "hpu_model_parallel"
"""It takes a function, which a name cannot have."""


class LazyEntry(dict[str, Any]):
    """What a registry of Lightning's has under a name, with a class that is not imported yet."""

    def __init__(self, key: str, module: str, kind: str, **values: Any) -> None:
        """Describes an entry.

        Args:
            key: The key under which the registry's entries have the class.
            module: Our module that has it.
            kind: The class.
            values: The other keys.
        """
        super().__init__(**values)
        self._key = key
        self._module = module
        self._kind = kind

    def __missing__(self, key: str) -> Any:
        if key != self._key:
            raise KeyError(key)
        found = self[key] = getattr(importlib.import_module(self._module), self._kind)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Returns what a dict's `get` does, with the class."""
        return self[key] if key in self or key == self._key else default


def register_accelerator(patch: str, registry: Any, module: str) -> None:
    """Makes "hpu" a name for `accelerator`.

    Args:
        patch: The name in the register.
        registry: Lightning's, of accelerators.
        module: Ours that has the accelerator.

    Raises:
        ValueError: Another package has taken the name.
    """
    values = {"description": "Intel Gaudi (HPU)", "init_params": {}, "accelerator_name": "hpu"}
    entry = LazyEntry("accelerator", module, "HPUAccelerator", **values)
    _enter(patch, registry, "hpu", entry, "accelerator")


def register_strategies(patch: str, registry: Any, selection: str) -> None:
    """Makes our names for `strategy` known.

    Args:
        patch: The name in the register.
        registry: Lightning's, of strategies.
        selection: Our module that chooses among them, beside which they are.

    Raises:
        ValueError: Another package has taken one of the names.
    """
    package = selection.rpartition(".")[0]
    for name, kind in STRATEGIES.items():
        if name == _WITHOUT_NAME_IN_FABRIC and ".fabric." in selection:
            continue
        values = {"description": kind, "init_params": {}, "strategy_name": name}
        _enter(patch, registry, name, LazyEntry("strategy", package, kind, **values), "strategy")


def _enter(patch: str, registry: Any, name: str, entry: LazyEntry, what: str) -> None:
    found = dict.get(registry, name)  # its own `get` makes an instance
    if isinstance(found, LazyEntry):
        return
    if found is not None:
        taken = found[what]
        raise ValueError(
            f"{what}={name!r} is {taken.__module__}.{taken.__name__} already. Uninstall the other "
            "plugin for HPUs, such as lightning-habana."
        )
    enter(patch, registry, name, entry)
