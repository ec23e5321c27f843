"""Train on Intel Gaudi with Lightning: `Trainer(accelerator="hpu")`.

Importing this package activates it; nothing else is loaded until a public name is used. Where the
package is installed, `import torch` alone activates it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_gaudi import _patches
from lightning_gaudi._core import mirror
from lightning_gaudi.strategy_table import exports

if TYPE_CHECKING:
    from . import (
        attention as attention,
        callbacks as callbacks,
        data as data,
        fabric as fabric,
        inference as inference,
        profiler as profiler,
        simulator as simulator,
    )
    from ._core import vendor as vendor
    from ._version import __version__ as __version__
    from .accelerator import HPUAccelerator as HPUAccelerator
    from .checkpoint import HPUCheckpointIO as HPUCheckpointIO
    from .precision import (
        HPUBitsandbytesPrecision as HPUBitsandbytesPrecision,
        HPUDeepSpeedPrecision as HPUDeepSpeedPrecision,
        HPUDeepSpeedPrecisionPlugin as HPUDeepSpeedPrecisionPlugin,
        HPUFSDPPrecision as HPUFSDPPrecision,
        HPUPrecisionPlugin as HPUPrecisionPlugin,
    )
    from .profiler import HPUProfiler as HPUProfiler
    from .strategies import (
        HPUDDPStrategy as HPUDDPStrategy,
        HPUDeepSpeedStrategy as HPUDeepSpeedStrategy,
        HPUFSDPStrategy as HPUFSDPStrategy,
        HPUModelParallelStrategy as HPUModelParallelStrategy,
        HPUParallelStrategy as HPUParallelStrategy,
        SingleHPUStrategy as SingleHPUStrategy,
    )

    HPU_AVAILABLE: bool

_find, __dir__, _names = mirror.lazy_names(
    __name__,
    {
        "__version__": "lightning_gaudi._version",
        "HPUAccelerator": ".accelerator",
        "HPUBitsandbytesPrecision": ".precision",
        "HPUCheckpointIO": ".checkpoint",
        "HPUDeepSpeedPrecision": ".precision",
        "HPUDeepSpeedPrecisionPlugin": ".precision",
        "HPUFSDPPrecision": ".precision",
        "HPUPrecisionPlugin": ".precision",
        "HPUProfiler": ".profiler",
        "attention": "lightning_gaudi.attention",
        "callbacks": ".callbacks",
        "data": "lightning_gaudi.data",
        "fabric": ".fabric",
        "inference": "lightning_gaudi.inference",
        "profiler": ".profiler",
        "simulator": "lightning_gaudi.simulator",
        "vendor": "lightning_gaudi._core.vendor",
        **dict.fromkeys(exports(in_fabric=False), ".strategies"),
    },
)

__all__ = [*_names, "HPU_AVAILABLE"]

_patches.activate()


def __getattr__(name: str) -> Any:
    if name == "HPU_AVAILABLE":
        # Under the name that lightning-habana had for it.
        return _find("HPUAccelerator").is_available()
    return _find(name)
