"""Check the patches, and train, with each version of Lightning; by hand, it takes a while.

    python scripts/check_lightning_versions.py                # every supported release
    python scripts/check_lightning_versions.py 2.5.6 2.6.6

`lightning` and `pytorch-lightning` of a version are installed without their dependencies into a
folder of their own below --folder, which goes ahead of the installed packages and is removed again.
In each: the tests that compare what we wrap, override or call with what we know; 20
steps on one simulated card and 20 on two, in both namespaces, with the Trainer (and its checkpoint)
and with Fabric, compared with a plain loop on the CPU that sees the whole batch; and programs for
GPUs with DeepSpeed, FSDP, FSDP2 and tensor parallelism, whose losses are compared with DDP's. What
fails says why on stderr.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[1]
_VERSIONS = ("2.5.6", "2.6.0", "2.6.1", "2.6.4", "2.6.5", "2.6.6")
_MALWARE = ("2.6.2", "2.6.3")
_SOURCE_TESTS = ("is_one_we_know", "is_what_the_register_says")
_SHARDS = _REPOSITORY / "tests" / "examples" / "test_gpu_scripts.py"
_NUM_STEPS = 20
_BATCH_SIZE = 8
_FAMILIES = {
    "lightning": ("lightning.pytorch", "lightning.fabric"),
    "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
}
_CHECKS = ("trainer", "fabric")


def main() -> int:
    """Check every version and print the table; the status is 1 if any check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=_VERSIONS, metavar="VERSION")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lightnings")
    parser.add_argument("--check", choices=_CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--family", choices=_FAMILIES, help=argparse.SUPPRESS)
    parser.add_argument("--cards", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--version", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        globals()[f"_check_{options.check}"](options)
        return 0
    if bad := [version for version in options.versions if version in _MALWARE]:
        parser.error(f"lightning {', '.join(bad)} was malware and is not installed. Leave it out.")
    options.folder.mkdir(parents=True, exist_ok=True)
    columns = ["sources", "shards, 2 cards"]
    columns += [f"{check}, {n} card{'s' * (n > 1)}" for check in _CHECKS for n in (1, 2)]
    rows = []
    for version in options.versions:
        rows.append(_check_version(version, options.folder.absolute()))
        print(rows[-1], flush=True)
    print(f"\n| lightning | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    print("\n".join(rows))
    return int(any("failed" in row for row in rows))


def _check_version(version: str, folder: Path) -> str:
    """One row of the table."""
    packages = folder / f"lightning-{version}"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir"]
    names = [f"lightning=={version}", f"pytorch-lightning=={version}"]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(packages), str(_REPOSITORY)]),
        "LIGHTNING_GAUDI_SIMULATE": "2",
        "OMP_NUM_THREADS": "1",
    }
    try:
        subprocess.run([*install, "--target", str(packages), *names], check=True)
        run = partial(_run, env=env, folder=folder)
        cells = [version, run(_pytest(_source_tests(), "-k", " or ".join(_SOURCE_TESTS)))]
        cells.append(run(_pytest([_SHARDS])))
        for check in _CHECKS:
            for cards in (1, 2):
                found = {
                    run(_self(check, version, family, cards), expected=cards)
                    for family in _FAMILIES
                }
                cells.append(", ".join(sorted(found)))
    finally:
        shutil.rmtree(packages, ignore_errors=True)
    return f"| {' | '.join(cells)} |"


def _source_tests() -> list[Path]:
    paths = (_REPOSITORY / "tests").rglob("test_*.py")
    return [path for path in paths if any(name in path.read_text() for name in _SOURCE_TESTS)]


def _pytest(tests: list[Path], *chosen: str) -> list[str]:
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(_REPOSITORY), "--tb=short"]
    return [sys.executable, "-m", "pytest", *map(str, tests), *chosen, *options]


def _self(check: str, version: str, family: str, cards: int) -> list[str]:
    options = {"check": check, "version": version, "family": family, "cards": cards}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, str(Path(__file__).resolve()), *arguments]


def _run(command: list[str], *, env: dict[str, str], folder: Path, expected: int = 0) -> str:
    """A cell of the table: "ok", or what failed.

    Args:
        command: What to run.
        env: Its environment.
        folder: Where it runs.
        expected: The number of ranks that must say that they are done; 0 for a test run.
    """
    try:
        result = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return "failed: 300 s are over"
    done = result.stdout.count("rank done: equals CPU")
    if result.returncode or done != expected:
        print(*command, result.stdout, result.stderr, sep="\n", file=sys.stderr)
        return f"failed: status {result.returncode}"
    return "ok"


def _model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))


def _data() -> Any:
    import torch

    inputs = torch.randn(_NUM_STEPS * _BATCH_SIZE, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def _loader(rank: int, world_size: int) -> Any:
    """Every n-th sample for each of n ranks, in order."""
    from torch.utils.data import DataLoader, DistributedSampler

    sampler = DistributedSampler(_data(), world_size, rank, shuffle=False)
    return DataLoader(_data(), _BATCH_SIZE // world_size, sampler=sampler)


def _loss(model: Any, batch: Any) -> Any:
    import torch

    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def _optimizer(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.05)


def _compare(model: Any, lightning: Any, options: argparse.Namespace) -> None:
    """Compare weights with those of a plain loop on the CPU; each rank says so."""
    import torch

    assert lightning.__version__ == options.version, lightning.__file__
    expected = _model()
    optimizer = _optimizer(expected)
    for batch in _loader(0, 1):
        optimizer.zero_grad()
        _loss(expected, batch).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        # One process computes the CPU's bits; two add their halves in another order.
        tolerance = 0 if options.cards == 1 else 1e-6
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=0, atol=tolerance)
    sys.stdout.write("rank done: equals CPU\n")


def _check_trainer(options: argparse.Namespace) -> None:
    lightning = import_module(_FAMILIES[options.family][0])

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = _model()

        def train_dataloader(self) -> Any:
            return _loader(self.trainer.global_rank, self.trainer.world_size)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert batch[0].device.type == "hpu"
            return _loss(self.model, batch)

        def configure_optimizers(self) -> Any:
            return _optimizer(self.model)

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "accelerator": "hpu",
            "devices": options.cards,
            "max_steps": _NUM_STEPS,
            "default_root_dir": folder,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
        }
        module = Module()
        trainer = lightning.Trainer(**settings)
        trainer.fit(module)
        if options.cards == 1:  # a checkpoint of the last step leaves nothing to train
            trainer.save_checkpoint(f"{folder}/last.ckpt")
            module = Module()
            resumed = lightning.Trainer(**settings, profiler="hpu")
            resumed.fit(module, ckpt_path=f"{folder}/last.ckpt")
    _compare(module.model, lightning, options)


def _check_fabric(options: argparse.Namespace) -> None:
    lightning = import_module(_FAMILIES[options.family][1])
    fabric = lightning.Fabric(accelerator="hpu", devices=options.cards)
    fabric.launch()
    model = _model()
    wrapped, optimizer = fabric.setup(model, _optimizer(model))
    loader = _loader(fabric.global_rank, fabric.world_size)
    for batch in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
        assert batch[0].device.type == "hpu"
        optimizer.zero_grad()
        fabric.backward(_loss(wrapped, batch))
        optimizer.step()
    _compare(model, lightning, options)


if __name__ == "__main__":
    sys.exit(main())
