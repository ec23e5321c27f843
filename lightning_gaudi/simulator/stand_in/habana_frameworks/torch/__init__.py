"""PyTorch on the simulated HPU; importing this package makes `torch.hpu`."""

import warnings

# Before anything of ours, because its import may activate the simulator.
import torch
from packaging.version import Version

from .._missing import hide_other_releases, missing
from .._modules import add_eclipsed
from .._reasons import GPU_MIGRATION
from . import _binding, _on_import, utils  # noqa: F401

from . import _ops, hpu, core  # isort: skip  # noqa: F401
from . import distributed, dynamo, hpex, internal, version
from ._signals import take_sigint
from .distributed import hccl
from .internal import bridge_config

run_time_ver = Version(torch.__version__)
"""The version of torch."""
compile_time_ver = run_time_ver
"""The version that the package was built for: the device is built for the torch that is there."""
is_torch_fork = False
"""Whether torch is the vendor's build. Theirs alone has a lazy mode; here any torch has."""
is_upstream_cpu = True
"""Whether torch is a build from PyTorch's own site."""
__version__ = version.__version__

__all__ = [
    "compile_time_ver",
    "core",
    "distributed",
    "dynamo",
    "hccl",
    "hpex",
    "hpu",
    "internal",
    "is_torch_fork",
    "is_upstream_cpu",
    "run_time_ver",
    "utils",
    "version",
]

if bridge_config.get_pt_hpu_gpu_migration():
    warnings.warn(f"PT_HPU_GPU_MIGRATION has no effect: {GPU_MIGRATION}", stacklevel=2)

take_sigint()
_on_import.call_after("torch._prims_common.wrappers", f"{__name__}._fake_tensors")
__getattr__ = missing(__name__)
hide_other_releases()
add_eclipsed()
