"""Has torch predict the same layouts for an HPU in every dtype.

An HPU returns results of pointwise operators row by row, and torch's fake tensors say so of the
device "hpu". But where an operator computes in another dtype than its arguments have, as in float32
for bfloat16, torch loses the device on the way there and predicts the layout of other devices, if
sizes are static. Here the converted argument keeps its device.

Source: PyTorch pull requests 104689 and 128206, by the vendor; delete this once torch has the like
of the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import wrappers
from torch._subclasses.fake_tensor import FakeTensor

_convert = wrappers._maybe_convert_to_dtype


def _convert_and_keep_device(a: Any, dtype: torch.dtype) -> Any:
    converted = _convert(a, dtype)
    is_lost = isinstance(a, FakeTensor) and type(converted) is torch.Tensor
    if is_lost and a.fake_device.type == "hpu" and converted.is_meta:
        return FakeTensor(a.fake_mode, converted, a.fake_device)
    return converted


wrappers._maybe_convert_to_dtype = _convert_and_keep_device
