"""The smallest program that meets each rule, by the key of the rule's row.

Each takes the device; that of a collective also needs a default process group.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from lightning_gaudi.tools.verify.programs import collectives, fallbacks
from lightning_gaudi.tools.verify.programs.values import on, positive, uniform

Program = Callable[[torch.device], object]

LARGE = 2**40


def _gelu(device: torch.device) -> None:
    x = uniform(8, device=device).requires_grad_()
    torch.nn.functional.gelu(x).sum().backward()  # type: ignore[no-untyped-call]


def _nonzero_out(device: torch.device) -> object:
    x, out = uniform(4, device=device), torch.empty(0, 1, dtype=torch.int64, device=device)
    return torch.nonzero(x > 0.5, out=out)


def _write_beside_mask(device: torch.device) -> None:
    x, mask = uniform(4, 4, device=device), on(device, [True, False, True, False])
    x[:, mask] = uniform(4, 2, device=device)


def _write_mask(device: torch.device) -> None:
    x = uniform(4, device=device)
    x[x > 0.5] = positive(1, device=device).expand(1)


def _write_uint8(device: torch.device) -> object:
    x, mask = uniform(4, device=device), on(device, [1, 0, 1, 0]).to(torch.uint8)
    return x.index_put_((mask,), uniform(2, device=device))


def _embedding_bag_gradient(device: torch.device) -> None:
    weight = uniform(4, 2, device=device).requires_grad_()
    indices = on(device, [[0, 1], [1, 1]])
    torch.nn.functional.embedding_bag(indices, weight, mode="sum").sum().backward()  # type: ignore[no-untyped-call]


def _fork(device: torch.device) -> None:
    torch.ones(1, device=device)
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _made_of(dtype: torch.dtype) -> Program:
    return lambda device: torch.empty(4, dtype=dtype, device=device)


def _copied(value: object, dtype: torch.dtype) -> Program:
    return lambda device: torch.tensor([value], dtype=dtype).to(device).clone()


def _copied_to_host(dtype: torch.dtype) -> Program:
    return lambda device: torch.empty(4, dtype=dtype).copy_(
        positive(4, device=device).to(dtype), non_blocking=True
    )


TYPES: dict[str, Program] = {
    "float64-demoted": lambda device: uniform(4, device=device).double() + 1,
    "float64-overflows": _copied(1e300, torch.float64),
    "float64-beyond-float32-refused": _copied(1e300, torch.float64),
    "int64-as-int32": lambda device: on(device, [2**31 - 1]) + 1,
    "int64-as-int32-on-gaudi1": lambda device: on(device, [2**31 - 1]) + 1,
    "int64-beyond-int32-refused": _copied(LARGE, torch.int64),
    "complex-refused": _made_of(torch.complex64),
    "complex-stays-on-host": lambda device: torch.complex(*uniform(2, 4, device=device)),
    "complex-views-refused": lambda device: torch.view_as_complex(uniform(4, 2, device=device)),
    "fft-refused": lambda device: torch.fft.rfft(uniform(8, device=device)),
    "eigenvalues-refused": lambda device: torch.linalg.eigvals(uniform(3, 3, device=device)),
    "unsigned-refused": _made_of(torch.uint16),
    "float8-variants-refused": _made_of(torch.float8_e4m3fnuz),
    "float16-refused-on-gaudi1": _made_of(torch.float16),
    "float8-refused-on-gaudi1": _made_of(torch.float8_e5m2),
    "quantized-refused": lambda device: torch.quantize_per_tensor(
        uniform(4, device=device), 0.1, 0, torch.qint8
    ),
    "sparse-refused": lambda device: uniform(3, 3, device=device).to_sparse(),
    "copy-over-8-dims-refused": lambda device: torch.empty(9 * [1], device=device).copy_(
        torch.zeros(9 * [1], device=device)
    ),
}

SHAPES: dict[str, Program] = {
    "nonzero-dynamic": lambda device: torch.nonzero(uniform(8, device=device) > 0.5),
    "masked-select-dynamic": lambda device: positive(8, device=device).masked_select(
        uniform(8, device=device) > 0.5
    ),
    "mask-index-dynamic": lambda device: positive(8, device=device)[
        uniform(8, device=device) > 0.5
    ],
    "mask-beside-indices-dynamic": _write_beside_mask,
    "unique-dynamic": lambda device: torch.unique(on(device, [3, 1, 3])),
    "mask-write-waits": _write_mask,
    "dynamic-shape": lambda device: torch.ops.aten.unique_dim_consecutive(
        uniform(4, 1, device=device), 0
    ),
    "value-on-host": lambda device: torch.allclose(
        uniform(4, device=device), uniform(4, device=device)
    ),
    "grouped-mm-dynamic": lambda device: torch._grouped_mm(
        uniform(6, 8, device=device).bfloat16(),
        uniform(2, 8, 16, device=device).bfloat16(),
        offs=on(device, [2, 6]).int(),
    ),
    "bincount-dynamic": lambda device: torch.bincount(on(device, [3, 1, 3]), minlength=4),
    "repeat-interleave-dynamic": lambda device: torch.repeat_interleave(
        uniform(3, device=device), on(device, [1, 0, 2])
    ),
    "item-waits": lambda device: uniform(4, device=device).sum().item(),
    "equal-waits": lambda device: torch.equal(
        uniform(4, device=device), positive(4, device=device)
    ),
    "copy-to-host-waits": lambda device: torch.empty(4).copy_(uniform(4, device=device)),
    "float64-copy-always-waits": _copied_to_host(torch.float64),
    "int64-copy-always-waits": _copied_to_host(torch.int64),
    "int64-copy-always-waits-on-gaudi1": _copied_to_host(torch.int64),
    "pinned-copy-blocks": lambda device: torch.empty(4, device=device).copy_(
        torch.zeros(4, pin_memory=device.type != "cpu"), non_blocking=True
    ),
}


def _scatter_from_itself(device: torch.device) -> object:
    x = positive(4, device=device)
    return torch.ops.aten.scatter(x, 0, on(device, [1, 0, 3, 2]), x)


DIFFERENCES: dict[str, Program] = {
    # torch.ops, since transformers replaces the methods of tensors if it finds an HPU.
    "gather-of-int64-wrong": lambda device: torch.ops.aten.gather(
        on(device, [5, 6, 7]), 0, on(device, [2, 0])
    ),
    "scatter-from-itself-wrong": _scatter_from_itself,
    # An overload that no other test calls, since an operator looks its rules up only once.
    "masked-fill-of-int64-refused": lambda device: torch.ops.aten.masked_fill_.Tensor(
        on(device, [5, 6]), on(device, [5, 6]) == 5, on(device, 0)
    ),
    "cholesky-nan": lambda device: torch.linalg.cholesky(torch.eye(2, device=device)),
    "gelu-as-tanh": _gelu,
    "attention-unfused": lambda device: torch.nn.functional.scaled_dot_product_attention(
        *uniform(3, 1, 2, 8, 4, device=device)
    ),
    "nonzero-out-untouched": _nonzero_out,
    "uint8-mask-as-indices": _write_uint8,
    "bincount-in-32-bits": lambda device: torch.bincount(
        on(device, [1, 1]), weights=uniform(2, device=device).double()
    ),
    "unsorted-unique-order": lambda device: torch.unique(on(device, [3, 1, 3]), sorted=False),
    "random-numbers-differ": lambda device: torch.empty(4, device=device).uniform_(),
    "division-not-precise": lambda device: positive(4, device=device) / positive(4, device=device),
    "scatter-add-unordered": lambda device: torch.zeros(2, device=device).scatter_add_(
        0, on(device, [0, 0, 1]), uniform(3, device=device)
    ),
    "embedding-bag-gradient-unordered": _embedding_bag_gradient,
    "stochastic-rounding-flushes": lambda device: torch.ops.hpu.cast_to_fp8_v2(
        uniform(4, device=device), None, True, False, torch.float8_e5m2
    ),
}


def _fused_attention(dtype: torch.dtype) -> Program:
    def attend(device: torch.device) -> object:
        tensors = uniform(3, 1, 2, 8, 4, device=device).to(dtype)
        return torch.ops.hpu.sdpa_recomp_fwd(
            *tensors, None, 0.0, 0.5, False, False, "none", None, "left"
        )

    return attend


def _nf4(dtype: torch.dtype) -> Program:
    def dequantize(device: torch.device) -> object:
        packed, scales = on(device, [7, 120]).byte(), torch.ones(1, dtype=dtype, device=device)
        return torch.ops.hpu.dequantize_nf4(packed, scales, 64, (4,), dtype)

    return dequantize


KERNELS: dict[str, Program] = {
    "fused-attention-refused-on-gaudi1": _fused_attention(torch.float32),
    "fused-attention-in-float16": _fused_attention(torch.float16),
    "nf4-refused-on-gaudi1": _nf4(torch.float32),
    "nf4-in-float16": _nf4(torch.float16),
}

PROCESSES: dict[str, Program] = {"fork-beside-card": _fork}

PROGRAMS: dict[str, Program] = {
    **TYPES,
    **SHAPES,
    **DIFFERENCES,
    **KERNELS,
    **PROCESSES,
    **fallbacks.NO_KERNEL,
    **fallbacks.BY_ARGUMENT,
    **collectives.COLLECTIVES,
}
"""The programs by the key of a rule's row."""

NOT_ON_CPU: dict[str, str] = {
    "float64-overflows": "no copy happens between CPU and CPU",
    "fork-beside-card": "it is no operator",
    "sync-batch-norm-refused": "the CPU has no such kernels",
    "stochastic-rounding-flushes": "an operator of the vendor's",
    **dict.fromkeys(KERNELS, "an operator of the vendor's"),
}
"""The rows whose program the CPU cannot run, or runs otherwise, and why; without collectives."""
