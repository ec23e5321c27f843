"""Steps of lazy execution, and what importing the package changes in torch."""

import sys

import torch

from ..._missing import missing
from .. import hpu
from .._binding import C
from ..utils.internal import is_lazy
from . import hccl, quantization, step_closure, torch_overwrites, weight_sharing
from .quantization import (
    hpu_inference_initialize,
    hpu_inference_reset_env,
    hpu_inference_set_env,
    hpu_initialize,
    hpu_reset_env,
    hpu_set_env,
    hpu_set_inference_env,
    hpu_teardown_inference_env,
)
from .step_closure import add_step_closure, iter_mark_step, mark_step
from .torch_overwrites import overwrite_torch_functions

__all__ = [
    "add_step_closure",
    "hccl",
    "hpu_inference_initialize",
    "hpu_inference_reset_env",
    "hpu_inference_set_env",
    "hpu_initialize",
    "hpu_reset_env",
    "hpu_set_env",
    "hpu_set_inference_env",
    "hpu_teardown_inference_env",
    "iter_mark_step",
    "mark_step",
    "overwrite_torch_functions",
    "quantization",
    "step_closure",
    "torch_overwrites",
    "weight_sharing",
]
__getattr__ = missing(__name__)

C.set_lazy(is_lazy())
torch._register_device_module("hpu", hpu)
for _name, _module in list(sys.modules.items()):
    # Without this, `import torch.hpu.random` would load a second copy of the module.
    if _name.startswith(f"{hpu.__name__}.") and "._" not in _name:
        sys.modules[_name.replace(hpu.__name__, "torch.hpu", 1)] = _module
torch_overwrites.overwrite_torch_functions()
