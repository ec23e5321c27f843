"""Torch's operator database (OpInfo) on two devices: samples, moves and an exact comparison."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the import misses hypothesis, which nothing here needs
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator's input, args and kwargs."""

Check = Literal["bits", "close", "metadata"]
"""How values are compared: every bit, at torch.testing's tolerance, not at all."""

_DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)

HPU_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
)
"""The dtypes that a Gaudi computes in and the CPU knows as well."""

Layout = Literal["given", "transposed", "channels last"]


@dataclass(frozen=True)
class Variant:
    """One entry of torch's operator database."""

    name: str
    """The operator's name, and after a dot the name of its variant if it has one."""
    op: OpInfo = field(repr=False)
    dtype: torch.dtype | None
    """float32, else the first of int64, complex64, bool that it takes; None: none of them."""

    @property
    def has_backward(self) -> bool:
        """Whether the operator is differentiable in `dtype`."""
        return self.op.supports_autograd and self.dtype in (torch.float32, torch.complex64)

    def samples(
        self, device: str, max_samples: int, *, requires_grad: bool = False
    ) -> Iterator[SampleInput]:
        """The operator's first samples, the same ones at every call."""
        seed_all(0)
        with pytest.MonkeyPatch.context() as patch:
            # Each call would look for a unittest.TestCase in all frames of the stack: 0.3 s.
            for module in (common_utils, core):
                patch.setattr(module, "extract_test_fn", lambda: None)
            samples = self.op.sample_inputs(device, self.dtype, requires_grad=requires_grad)
        return islice((sample for sample in samples if _names_a_device(sample)), max_samples)


def _names_a_device(sample: SampleInput) -> bool:
    """False for the like of `arange(2)`, which would run on the CPU."""
    return bool(tensors(arguments(sample))) or "device" in sample.kwargs


def variants() -> list[Variant]:
    """Every operator variant that torch knows."""
    found = []
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        dtype = next((dtype for dtype in _DTYPES if dtype in op.dtypes), None)
        found.append(Variant(name, op, dtype))
    return found


def in_each_dtype(variant: Variant) -> list[Variant]:
    """The variant in all of a Gaudi's dtypes in which the CPU has it."""
    dtypes = [dtype for dtype in HPU_DTYPES if dtype in variant.op.dtypes]
    return [replace(variant, dtype=dtype) for dtype in dtypes]


def lay_out(tree: Any, layout: Layout) -> Any:
    """`tree` with its tensors laid out otherwise in memory; None if none can be.

    Tensors of one dimension, and of one size, become ones of four dimensions.
    """
    found = tensors(tree)
    if any(tensor.layout != torch.strided or tensor.is_conj() for tensor in found):
        return None
    flat = {tensor.shape for tensor in found if tensor.dim() == 1}
    is_flat = len(flat) == 1 and all(tensor.dim() < 2 for tensor in found)

    def lay_out_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensor = leaf.detach()
        if is_flat and tensor.dim() == 1:
            tensor = tensor.reshape(-1, 1, 1, 1).repeat(1, 3, 2, 2)
        if tensor.dim() < 2:
            return tensor
        if layout == "channels last":
            last = tensor.movedim(1, -1) if tensor.dim() == 4 else tensor.mT
            return last.contiguous().movedim(-1, 1) if tensor.dim() == 4 else last.contiguous().mT
        back = tuple(reversed(range(tensor.dim())))
        return tensor.permute(back).contiguous().permute(back)

    return tree_map(lay_out_leaf, tree) if is_flat or any(t.dim() > 1 for t in found) else None


def seed_all(seed: int) -> None:
    """Seed every generator that a sample or an operator may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # torch's samples draw from the global generator


def arguments(sample: SampleInput) -> Arguments:
    """What `call` passes to the operator."""
    return sample.input, sample.args, sample.kwargs


def move(tree: Any, device: str) -> Any:
    """A copy of `tree` on `device`: same values, strides, offsets, shared storages and flags.

    A tensor that lies on the CPU stays there: an operator asked for it (tensor_split's indices).
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def move_storage(source: torch.UntypedStorage, target: str) -> torch.UntypedStorage:
        if source._cdata not in storages:
            storages[source._cdata] = torch.UntypedStorage(source.nbytes(), device=target)
            storages[source._cdata].copy_(source)
        return storages[source._cdata]

    def move_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if isinstance(leaf, str) and leaf.split(":")[0] in ("cpu", "hpu"):
            return device
        if not isinstance(leaf, torch.Tensor):
            return leaf
        target = "cpu" if leaf.device.type == "cpu" else device
        if leaf.layout != torch.strided or leaf.is_conj() or leaf.is_neg():
            moved = leaf.detach().clone().to(target)
        else:
            moved = torch.empty(0, dtype=leaf.dtype, device=target)
            storage = move_storage(leaf.untyped_storage(), target)
            moved.set_(storage, leaf.storage_offset(), leaf.size(), leaf.stride())
        return moved.requires_grad_(leaf.requires_grad)

    return tree_map(move_leaf, tree)


def fake(tree: Any, mode: FakeTensorMode) -> Any:
    """`tree` with each of its tensors replaced by a fake one: metadata without data."""

    def fake_leaf(leaf: Any) -> Any:
        return mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(fake_leaf, tree)


def call(variant: Variant, moved: Arguments) -> Any:
    """Call the operator under a fixed seed."""
    input_, args, kwargs = moved
    seed_all(1)
    return variant.op.op(input_, *args, **kwargs)


def on_hpu_alone(on_cpu: Any, on_hpu: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of two equal trees, without those that lie on the CPU in both."""
    pairs = zip(tensors(on_cpu), tensors(on_hpu), strict=True)
    moved = [pair for pair in pairs if pair[1].device.type == "hpu"]
    return [pair[0] for pair in moved], [pair[1] for pair in moved]


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of `tree`."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def difference(expected: Any, actual: Any, check: Check = "bits") -> str | None:
    """What first differs between a CPU result and an hpu one; None if nothing does.

    Args:
        expected: Outputs of the CPU, any tree.
        actual: Outputs of the hpu.
        check: How the values are compared; shape, dtype, layout and device always are.
    """
    old, new = tree_leaves(expected), tree_leaves(actual)
    if len(old) != len(new):
        return f"{len(old)} outputs on cpu, {len(new)} on hpu"
    for index, (left, right) in enumerate(zip(old, new, strict=True)):
        found = _difference(left, right, check)
        if found:
            return f"output {index}: {found}"
    return None


def _difference(expected: Any, actual: Any, check: Check) -> str | None:
    if type(expected) is not type(actual):
        return f"{type(expected).__name__} on cpu, {type(actual).__name__} on hpu"
    if not isinstance(expected, torch.Tensor):
        is_same = expected == actual or (expected != expected and actual != actual)
        return None if is_same else f"{expected} on cpu, {actual} on hpu"
    if actual.device.type != "hpu":
        return f"lies on {actual.device}"
    for name in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(expected, name) != getattr(actual, name):
            return f"{name} {getattr(expected, name)} on cpu, {getattr(actual, name)} on hpu"
    if check == "metadata" or torch.equal(_bits(expected), _bits(actual)):
        return None
    wide, other = (tensor.detach().cpu().cdouble() for tensor in (expected, actual))
    eps = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
    rtol = max(1e-4, 2 * eps)
    atol = 1e-5 if eps or expected.is_complex() else 1.0  # of what is rounded to integers
    if check == "close" and torch.allclose(wide, other, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return f"values differ by up to {(wide - other).abs().max().item():.3g}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the values, in logical order, on the CPU: NaN equals NaN, 0. is not -0."""
    dense = tensor.detach().cpu()
    if dense.layout != torch.strided:
        dense = dense.to_dense()
    flat = torch.empty(dense.numel(), dtype=dense.dtype)
    return flat.copy_(dense.reshape(-1)).view(torch.uint8)
