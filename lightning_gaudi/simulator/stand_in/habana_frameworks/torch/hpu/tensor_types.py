"""Offers `torch.hpu.FloatTensor(...)` and its like, which make tensors of a type on the HPU."""

from __future__ import annotations

from typing import Any

import torch

from ..._missing import missing


def _tensor_type(name: str, dtype: torch.dtype) -> type[torch.Tensor]:
    def __new__(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: N807
        for key, own in (("device", "hpu"), ("dtype", dtype)):
            if kwargs.get(key) not in (None, own):
                raise RuntimeError(
                    f"torch.hpu.{name} makes tensors of {key} {own}, and got {kwargs[key]}. Leave "
                    f"{key} out, or use torch.tensor."
                )
        data = torch.tensor(*args, **{**kwargs, "device": "hpu", "dtype": dtype})
        return torch.Tensor._make_subclass(cls, data)

    doc = f"A tensor of {dtype} on the HPU; takes what `torch.tensor` takes."
    return type(name, (torch.Tensor,), {"__new__": __new__, "__doc__": doc})


BFloat16Tensor = _tensor_type("BFloat16Tensor", torch.bfloat16)
BoolTensor = _tensor_type("BoolTensor", torch.bool)
ByteTensor = _tensor_type("ByteTensor", torch.uint8)
CharTensor = _tensor_type("CharTensor", torch.int8)
DoubleTensor = _tensor_type("DoubleTensor", torch.float64)
FloatTensor = _tensor_type("FloatTensor", torch.float32)
HalfTensor = _tensor_type("HalfTensor", torch.float16)
IntTensor = _tensor_type("IntTensor", torch.int32)
LongTensor = _tensor_type("LongTensor", torch.int64)
ShortTensor = _tensor_type("ShortTensor", torch.int16)

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]
__getattr__ = missing(__name__)
