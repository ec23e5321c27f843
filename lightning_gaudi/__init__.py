"""Train on Intel Gaudi with Lightning: `Trainer(accelerator="hpu")`.

Importing this package activates it; nothing else is loaded until a public name is used. Where the
package is installed, `import torch` alone activates it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_gaudi import _patches
from lightning_gaudi._core import lazy

if TYPE_CHECKING:
    from . import callbacks, data, fabric, profiler, simulator
    from ._core import vendor
    from ._version import __version__
    from .accelerator import HPUAccelerator
    from .checkpoint import HPUCheckpointIO
    from .precision import (
        HPUDeepSpeedPrecision,
        HPUDeepSpeedPrecisionPlugin,
        HPUFSDPPrecision,
        HPUPrecisionPlugin,
    )
    from .profiler import HPUProfiler
    from .strategies import (
        HPUDDPStrategy,
        HPUDeepSpeedStrategy,
        HPUFSDPStrategy,
        HPUModelParallelStrategy,
        HPUParallelStrategy,
        SingleHPUStrategy,
    )

    HPU_AVAILABLE: bool

__all__ = [
    "HPU_AVAILABLE",
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
    "callbacks",
    "data",
    "fabric",
    "profiler",
    "simulator",
    "vendor",
]

_find, __dir__ = lazy.names(
    __name__,
    {
        "__version__": "lightning_gaudi._version",
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
        "callbacks": ".callbacks",
        "data": "lightning_gaudi.data",
        "fabric": ".fabric",
        "profiler": ".profiler",
        "simulator": "lightning_gaudi.simulator",
        "vendor": "lightning_gaudi._core.vendor",
    },
)

_patches.activate()


def __getattr__(name: str) -> Any:
    if name == "HPU_AVAILABLE":
        # Under the name that lightning-habana had for it.
        return _find("HPUAccelerator").is_available()
    return _find(name)
