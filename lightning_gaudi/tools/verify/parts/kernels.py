"""Measures the speeds of products of matrices, of operators that move memory, and of copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from lightning_gaudi._core import vendor
from lightning_gaudi.tools.verify.parts.context import Context, Tell

_SHAPES: tuple[tuple[int, int, int], ...] = (
    *((size, size, size) for size in (512, 1024, 2048, 4096, 8192, 16384)),
    *((4096, 1024, 1024), (4096, 1024, 4096), (4096, 4096, 1024), (8192, 4096, 4096)),
    *((8192, 4096, 11008), (8192, 11008, 4096), (8192, 4096, 32000), (16384, 8192, 8192)),
    *((1, 4096, 4096), (1, 4096, 11008), (8, 4096, 4096), (64, 4096, 4096)),
    *((256, 8192, 8192), (2048, 5120, 13824)),
)
"""(M, K, N): squares, layers of BERT-large and of Llama 7B, 13B and 70B, and rows of decoding."""
_ON_CPU = 64
"""The divisor of all sizes where a CPU plays the card."""
_DTYPES = ("float32", "bfloat16", "float8_e4m3fn")


def measure_matmuls(context: Context, tell: Tell) -> None:
    """Reports the FLOP/s of products by shape and dtype, and the dtypes that the card lacks."""
    generation = vendor.generation()
    for dtype in _DTYPES:
        if dtype.startswith("float8") and generation is not None and not generation.has_float8:
            continue
        for m, k, n in _shapes(context):
            run = _product(context.device, dtype, m, k, n)
            seconds = context.seconds(run)
            flops = 2 * m * k * n / seconds
            row = {"row": "matmuls", "dtype": dtype, "m": m, "k": k, "n": n}
            tell({**row, "seconds": seconds, "flops": flops})


def _shapes(context: Context) -> Iterator[tuple[int, int, int]]:
    divisor = _ON_CPU if context.is_small else 1
    for m, k, n in _SHAPES[:: 5 if context.is_quick else 1]:
        yield max(1, m // divisor), max(16, k // divisor), max(16, n // divisor)


def _product(device: torch.device, dtype: str, m: int, k: int, n: int) -> Callable[[], object]:
    x = torch.ones(m, k, dtype=torch.bfloat16).to(device)
    y = torch.ones(k, n, dtype=torch.bfloat16).to(device)
    if not dtype.startswith("float8"):
        kind = getattr(torch, dtype)
        x, y = x.to(kind), y.to(kind)
        return lambda: torch.mm(x, y)
    # The vendor's operators of fp8, as its Transformer Engine and optimum-habana call them.
    hpu = torch.ops.hpu
    x8, y8 = (
        hpu.cast_to_fp8_v2(each, None, False, False, torch.float8_e4m3fn)[0] for each in (x, y)
    )
    scale = torch.ones(1).to(device)
    return lambda: hpu.fp8_gemm_v2(
        x8, False, y8, False, None, torch.bfloat16, scale, scale, None, False
    )


_OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
}


def measure_operators(context: Context, tell: Tell) -> None:
    """Reports the bytes a second of operators that read and write a bfloat16 matrix once."""
    for name, run in _OPERATORS.items():
        for rows in (256, 4096, 65536):
            shape = (rows // _ON_CPU, 1024) if context.is_small else (rows, 4096)
            x = torch.ones(shape, dtype=torch.bfloat16).to(context.device)
            seconds = context.seconds(lambda run=run, x=x: run(x))  # type: ignore[misc]
            row = {"row": "operators", "operator": name, "rows": shape[0], "columns": shape[1]}
            tell({**row, "seconds": seconds, "bytes_per_s": 4 * x.numel() / seconds})


def measure_copies(context: Context, tell: Tell) -> None:
    """Reports the bytes a second of copies to and from the card by size, pinned and not."""
    for power in (10, 16, 22) if context.is_small else (10, 20, 24, 28):
        on_card = torch.zeros(2**power, dtype=torch.uint8, device=context.device)
        for is_pinned in (False, True):
            host = torch.zeros(2**power, dtype=torch.uint8)
            host = host.pin_memory("hpu") if is_pinned else host
            for is_to_card in (True, False):
                to, source = (on_card, host) if is_to_card else (host, on_card)
                seconds = context.seconds(
                    lambda to=to, source=source: to.copy_(source, non_blocking=True)  # type: ignore[misc]
                )
                tell(
                    {
                        "row": "copies",
                        "direction": "to the card" if is_to_card else "to the host",
                        "is_pinned": is_pinned,
                        "num_bytes": 2**power,
                        "seconds": seconds,
                        "bytes_per_s": 2**power / seconds,
                    }
                )
