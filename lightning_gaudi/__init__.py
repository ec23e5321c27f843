"""Train on Intel Gaudi with Lightning: `Trainer(accelerator="hpu")`.

Importing this package activates it; nothing else is loaded until a public name is used. Where the
package is installed, `import torch` alone activates it too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightning_gaudi import activation

if TYPE_CHECKING:
    from lightning_gaudi._version import __version__
    from lightning_gaudi.accelerator import HPUAccelerator
    from lightning_gaudi.checkpoint import HPUCheckpointIO
    from lightning_gaudi.precision import (
        HPUDeepSpeedPrecision,
        HPUDeepSpeedPrecisionPlugin,
        HPUFSDPPrecision,
        HPUPrecisionPlugin,
    )
    from lightning_gaudi.profiler import HPUProfiler
    from lightning_gaudi.strategies import (
        HPUDDPStrategy,
        HPUDeepSpeedStrategy,
        HPUFSDPStrategy,
        HPUModelParallelStrategy,
        HPUParallelStrategy,
        SingleHPUStrategy,
    )

    HPU_AVAILABLE: bool

__all__ = [
    "HPUAccelerator",
    "HPUCheckpointIO",
    "HPUDDPStrategy",
    "HPUDeepSpeedPrecision",
    "HPUDeepSpeedPrecisionPlugin",
    "HPUDeepSpeedStrategy",
    "HPUFSDPPrecision",
    "HPUFSDPStrategy",
    "HPUModelParallelStrategy",
    "HPUParallelStrategy",
    "HPUPrecisionPlugin",
    "HPUProfiler",
    "SingleHPUStrategy",
    "__version__",
]

_HOMES = {
    "__version__": "._version",
    "HPUAccelerator": ".accelerator",
    "HPUCheckpointIO": ".checkpoint",
    "HPUDDPStrategy": ".strategies",
    "HPUDeepSpeedPrecision": ".precision",
    "HPUDeepSpeedPrecisionPlugin": ".precision",
    "HPUDeepSpeedStrategy": ".strategies",
    "HPUFSDPPrecision": ".precision",
    "HPUFSDPStrategy": ".strategies",
    "HPUModelParallelStrategy": ".strategies",
    "HPUParallelStrategy": ".strategies",
    "HPUPrecisionPlugin": ".precision",
    "HPUProfiler": ".profiler",
    "SingleHPUStrategy": ".strategies",
}

activation.activate()


def __getattr__(name: str) -> Any:
    if name == "HPU_AVAILABLE":
        # Under the name that lightning-habana had for it.
        return __getattr__("HPUAccelerator").is_available()
    if name == "vendor":
        return importlib.import_module("._core.vendor", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
