"""Build the simulator for a list of torch versions and train on it; by hand, it takes a while.

    python scripts/check_torch_versions.py 2.9.1 2.15.0

Each version is installed into a virtual environment of its own below --folder, checked, and removed
again: a CUDA build needs 7 GB while it is there. A path to a Python with torch may stand for a
version; it is used as it is. The table printed at the end goes into the simulator's README.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[1]
_NUM_STEPS = 20
_NEEDED = ("numpy", "filelock", "packaging")
_CHECKS = ("training", "loader", "collectives", "rules", "graphs")


def main() -> int:
    """Check every version and print the table; the status is 1 if any check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("versions", nargs="*", help="versions of torch, or paths to a Python")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "torches")
    parser.add_argument("--check", choices=_CHECKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        print(json.dumps(globals()[f"_check_{options.check}"]()))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for version in options.versions:
        rows.append(_check_version(version, options.folder.absolute()))
        print(rows[-1], flush=True)
    print("\n| torch | build | training | pinned DataLoader | collectives | waits | HPU graphs |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return int(any("failed" in row for row in rows))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    pass


def _check_version(version: str, folder: Path) -> str:
    """Returns one row of the table."""
    if "/" in version:
        return _check_python(version, folder)
    venv = folder / f"venv-{version}"
    python = str(venv / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([*install, f"torch=={version}", *_NEEDED], check=True)
        return _check_python(python, folder)
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def _check_python(python: str, folder: Path) -> str:
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        source = "import torch; print(torch.__version__)"
        version = subprocess.check_output([python, "-c", source], text=True).strip()
        build = (
            "import time; start = time.time(); from lightning_gaudi.simulator import build; "
            "build.ensure_built(); print(f'{time.time() - start:.0f} s')"
        )
        cells = [version, _run([python, "-c", build], cache, {})]
        for check in _CHECKS:
            command = [python, __file__, "--check", check]
            cells.append(_run(command, cache, {"LIGHTNING_GAUDI_SIMULATE": "2"}))
    return f"| {' | '.join(cells)} |"


def _run(command: list[str], cache: str, env: dict[str, str]) -> str:
    """The last line that the command printed."""
    env = os.environ | {
        "PYTHONPATH": str(_REPOSITORY),
        "LIGHTNING_GAUDI_CACHE_DIR": cache,
        "OMP_NUM_THREADS": "1",
        **env,
    }
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout, result.stderr, file=sys.stderr)
        return f"failed: status {result.returncode}"
    return result.stdout.splitlines()[-1].strip('"')


def _train(device: str) -> list[Any]:
    """Losses and final weights, on the CPU, of a small network with dropout under AdamW."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = (nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    results = []
    for _ in range(_NUM_STEPS):
        x = torch.randn(32, 16, generator=data).to(device)
        y = torch.randint(4, (32,), generator=data).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        results.append(loss.detach().cpu())
    return results + [parameter.detach().cpu() for parameter in model.parameters()]


def _check_training() -> str:
    import torch

    import lightning_gaudi  # noqa: F401

    assert torch.accelerator.current_accelerator() == torch.device("hpu")
    pairs = zip(_train("cpu"), _train("hpu"), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "hpu and CPU differ"
    with torch.autocast("hpu", dtype=torch.bfloat16):
        product = torch.ones(2, 2, device="hpu") @ torch.ones(2, 2, device="hpu")
    assert product.dtype == torch.bfloat16
    return "equals CPU"


def _check_rules() -> str:
    """The host waits for what this torch tags, and for nothing else."""
    import torch

    import lightning_gaudi  # noqa: F401
    from lightning_gaudi.simulator import rules
    from tests.helpers.torch_tags import waited_for

    device = sys.modules["_hpu_sim"]
    waiting = {name.partition(".")[0] for name in device.waiting_operators()}
    assert waiting == waited_for(), waiting ^ waited_for()
    rules.set_mode("error")
    x = torch.ones(3, device="hpu")
    for program in (lambda: x[x > 0], x.double, lambda: torch.fft.rfft(x)):
        try:
            program()
        except rules.GaudiRuleError:
            continue
        raise AssertionError("A rule was met and nothing was said.")
    return "as tagged"


def _check_graphs() -> str:
    """A captured model replays to the bit, without its Python."""
    os.environ["PT_HPU_LAZY_MODE"] = "1"
    import torch

    import lightning_gaudi  # noqa: F401

    calls = []

    class Net(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(x)
            return super().forward(x)

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = Net(layer, torch.nn.Linear(8, 8)).to("hpu").eval()
    inputs = [torch.randn(2, 4, 8).to("hpu") for _ in range(3)]
    with torch.no_grad():
        expected = [model(x).cpu() for x in inputs]
        calls.clear()
        hpu: Any = torch.hpu
        model = hpu.wrap_in_hpu_graph(model)
        assert all(torch.equal(model(x).cpu(), e) for x, e in zip(inputs, expected, strict=True))
    assert len(calls) == 1, len(calls)
    return "equal"


def _check_loader() -> str:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import lightning_gaudi  # noqa: F401

    for context in ("fork", "spawn"):
        loader = DataLoader(
            TensorDataset(torch.arange(8.0)),
            batch_size=4,
            num_workers=2,
            pin_memory=True,
            multiprocessing_context=context,
        )
        for (batch,) in loader:
            assert batch.is_pinned()
            assert batch.to("hpu", non_blocking=True).device.type == "hpu"
    return "ok"


def _rank(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    import lightning_gaudi  # noqa: F401

    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    tensor = torch.full((4,), float(rank), device="hpu")
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [0.5] * 4
    output = torch.zeros(2, device="hpu")
    dist.reduce_scatter_tensor(output, torch.arange(4.0, device="hpu"))
    assert output.tolist() == [4.0 * rank, 4.0 * rank + 2]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to("hpu"))
    model(tensor).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


def _check_collectives() -> str:
    import torch

    import lightning_gaudi  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        context = torch.multiprocessing.spawn(_rank, (f"{folder}/store",), 2, join=False)
        while not context.join(timeout=1):
            assert time.monotonic() - start < 180, "the ranks did not end"
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
