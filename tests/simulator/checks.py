"""Run many checks in one spawn of ranks, and let each be a test of its own."""

from __future__ import annotations

import importlib
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.helpers.ranks import run_ranks

_PATIENCE_S = 70
"""Longer than a rank waits for others in a collective (tests/helpers/ranks.py)."""

Failures = list[dict[str, str]]
"""Of each rank, the tracebacks of the checks that failed."""


def collect(names: dict[str, Any], prefix: str = "check_") -> dict[str, Callable[[int], None]]:
    """The functions of a module whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): f for name, f in names.items() if name.startswith(prefix)}


def run(module: str, folder: Path, *, num_ranks: int, prefix: str = "check_") -> Failures:
    """Call every check of `module` with the rank, on each of `num_ranks` ranks."""
    run_ranks(_run, folder, module, prefix, folder, num_ranks=num_ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def expect_success(name: str, failures: Failures) -> None:
    """Fail with the tracebacks of every rank on which the check `name` failed."""
    found = [f"rank {i}:\n{each[name]}" for i, each in enumerate(failures) if name in each]
    assert not found, "\n".join(found)


def _run(rank: int, module: str, prefix: str, folder: Path) -> None:
    """Run the checks until one fails anywhere: ranks that are out of step would wait in vain."""
    warnings.simplefilter("ignore")
    store = dist.distributed_c10d._get_default_store()
    failures: dict[str, str] = {}
    for name, check in collect(vars(importlib.import_module(module)), prefix).items():
        if store.add("failures", 0):
            failures[name] = "Not run: a check before it failed."
            continue
        try:
            check(rank)
        except Exception:
            failures[name] = traceback.format_exc()
            store.add("failures", 1)
        (folder / f"{rank}.json").write_text(json.dumps(failures))
        store.add(f"done/{name}", 1)
        deadline = time.monotonic() + _PATIENCE_S
        while store.add(f"done/{name}", 0) < dist.get_world_size() and time.monotonic() < deadline:
            time.sleep(0.005)
    (folder / f"{rank}.json").write_text(json.dumps(failures))
    if failures:
        os._exit(0)  # the group may be broken; the failures are in the file


def inputs(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """What each rank begins with, on the CPU: normal floats, or whole numbers from 0 to 3."""
    result = []
    for rank in range(dist.get_world_size()):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        if dtype == torch.float32:
            result.append(torch.randn(shape, generator=generator))
        else:
            result.append(torch.randint(4, shape, generator=generator).to(dtype))
    return result


def expect(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> None:
    """Compare what is on the HPU with what a CPU says; by default to the bit."""
    assert result.device == torch.device("hpu:0")
    torch.testing.assert_close(result.cpu(), expected, rtol=tolerance, atol=tolerance)


def expect_all(results: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    """Compare lists of tensors to the bit."""
    for result, each in zip(results, expected, strict=True):
        expect(result, each)
