"""Makes modules of the vendor's that have no file here, and hides those of other releases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_gaudi.simulator import vendor_names

from ._missing import has, missing
from ._reasons import GPU_MIGRATION, reason_for
from ._release import release

_SEPARATE = {
    "habana_frameworks.medialoaders": "media are decoded by the vendor's media libraries",
    "habana_frameworks.mediapipe": "media are decoded by the vendor's media libraries",
    "habana_frameworks.torch.gpu_migration": GPU_MIGRATION,
}
"""The vendor's packages that are installed on their own, and why they are not here."""


def install() -> None:
    """Installs the finders, once, when the package is imported."""
    # First, so that no file is found for a module that the release has not; the other one last, so
    # that files come before it.
    sys.meta_path.insert(0, _OtherReleases())
    sys.meta_path.append(_Refusing())


def add_eclipsed(only: str | None = None) -> None:
    """Makes the modules whose package has a class of the same name, as `optimizers.FusedAdamW`.

    Args:
        only: The `__name__` of a package that is imported after the others; None for all packages.
    """
    for name, listed in vendor_names.modules().items():
        parent, _, short = name.rpartition(".")
        package = sys.modules.get(f"{vendor_names.PACKAGE}.{parent}")
        if (
            package is None
            or only not in (None, package.__name__)
            or not listed.is_in(release())
            or not has(package, short)
        ):
            continue
        if short in vendor_names.modules()[parent].names and not _has_file(package, short):
            # Put into `sys.modules` now: importing it later would put the module in the place of
            # the class.
            module = ModuleType(f"{package.__name__}.{short}", reason_for(name))
            module.__getattr__ = _eclipsed(package, module)  # type: ignore[method-assign]


def _has_file(package: ModuleType, short: str) -> bool:
    return any(Path(folder, f"{short}.py").exists() for folder in package.__path__)


def _eclipsed(package: ModuleType, module: ModuleType) -> Callable[[str], Any]:
    sys.modules[module.__name__] = module
    refuse = missing(module.__name__)
    listed = vendor_names.find_module(module.__name__)
    assert listed is not None

    def __getattr__(name: str) -> Any:  # noqa: N807 (assigned to a module)
        if name in listed.names and has(package, name):
            return getattr(package, name)
        return refuse(name)

    return __getattr__


class _OtherReleases:
    """A finder that refuses the modules which this release has not, even where they have files."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if not name.startswith(f"{vendor_names.PACKAGE}."):
            return
        if name in _SEPARATE:
            raise ModuleNotFoundError(f"No module named {name!r}: {_SEPARATE[name]}", name=name)
        listed = vendor_names.find_module(name)
        if listed is not None and not listed.is_in(release()):
            raise ModuleNotFoundError(
                f"No module named {name!r} in Gaudi's package {release().version}", name=name
            )


class _Refusing:
    """A finder and loader for listed modules without a file, whose names refuse to be called."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{vendor_names.PACKAGE}."):
            return None
        if vendor_names.find_module(name) is None:
            return None
        short = name.removeprefix(f"{vendor_names.PACKAGE}.")
        is_package = any(other.startswith(f"{short}.") for other in vendor_names.modules())
        return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves making the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = reason_for(module.__name__)
        module.__getattr__ = missing(module.__name__)  # type: ignore[method-assign]
