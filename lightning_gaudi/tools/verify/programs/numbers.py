"""Programs that tell whether a card's numbers are as a rule says, where they may be close.

Each returns whether the card did as its rule says; the CPU's numbers are the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.nn import functional

from lightning_gaudi.tools.verify.programs.values import on, uniform

Program = Callable[[torch.device], bool]
CPU = torch.device("cpu")
_SMALLEST_E5M2 = 2.0**-16


def _host_complex(device: torch.device) -> bool:
    return torch.complex(*uniform(2, 4, device=device)).device.type == "cpu"


def _gelu(device: torch.device) -> bool:
    """Returns whether the result is nearer to the other of the two forms, which differ by 5e-4."""
    x = torch.linspace(-4, 4, 4096)
    found = functional.gelu(x.to(device)).cpu()
    exact, tanh = functional.gelu(x), functional.gelu(x, approximate="tanh")
    return bool((found - tanh).abs().max() < (found - exact).abs().max())


def _unsorted(device: torch.device) -> bool:
    values = [3, 1, 3, 7, 5, 1, 9, 2]
    found = torch.unique(on(device, values), sorted=False).cpu()
    return not torch.equal(found, torch.unique(torch.tensor(values), sorted=False))


def _random(device: torch.device) -> bool:
    found = []
    for each in (CPU, device):
        torch.manual_seed(1)
        found.append(torch.empty(64, device=each).uniform_().cpu())
    return not torch.equal(*found)


def _division(device: torch.device) -> bool:
    x, y = uniform(2, 65536, device=CPU) + 1
    return not torch.equal((x.to(device) / y.to(device)).cpu(), x / y)


def _cholesky(device: torch.device) -> bool:
    """Returns whether the card finds no factor of some matrix that is barely positive definite."""
    root = uniform(16, 8, 4, device=CPU)
    matrices = root @ root.mT + 1e-6 * torch.eye(8)
    return bool(torch.linalg.cholesky_ex(matrices.to(device))[0].cpu().isnan().any())


def _stochastic(device: torch.device) -> bool:
    """Returns whether small numbers are flushed; otherwise a fourth would be rounded up."""
    x = torch.full((4096,), _SMALLEST_E5M2 / 4).to(device)
    found = torch.ops.hpu.cast_to_fp8_v2(x, None, True, False, torch.float8_e5m2)[0]
    return not found.float().cpu().count_nonzero()


def _average_of_booleans(device: torch.device) -> bool:
    mine = torch.tensor([dist.get_rank() == 0, False]).to(device)
    dist.all_reduce(mine, ReduceOp.AVG)
    return bool(mine.cpu().tolist() == [True, False])


NUMBERS: dict[str, Program] = {
    "complex-stays-on-host": _host_complex,
    "gelu-as-tanh": _gelu,
    "unsorted-unique-order": _unsorted,
    "random-numbers-differ": _random,
    "division-not-precise": _division,
    "cholesky-nan": _cholesky,
    "stochastic-rounding-flushes": _stochastic,
    "average-of-booleans": _average_of_booleans,
}
"""The programs by the key of a rule's row."""


def _integers(device: torch.device) -> object:
    x = on(device, [2**24 + 1])
    dist.all_reduce(x)
    return x


def _coalesced(device: torch.device) -> object:
    size = dist.get_world_size()
    output = torch.zeros(2, dtype=torch.uint8).to(device)
    source = torch.ones(2 * size, dtype=torch.uint8).to(device)
    with dist._coalescing_manager(device=device):  # type: ignore[attr-defined]
        dist.reduce_scatter_tensor(output, source)
    return output


REDUCED: dict[str, tuple[Callable[[torch.device], object], Callable[[int], torch.Tensor]]] = {
    "integers-reduced-in-float32": (_integers, lambda size: torch.tensor([size * (2**24 + 1)])),
    "coalesced-reduce-scatter-lost": (
        _coalesced,
        lambda size: torch.full((2,), size, dtype=torch.uint8),
    ),
}
"""The collectives whose numbers a card changes: a program, and the result for a number of ranks."""
