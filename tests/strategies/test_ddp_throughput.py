"""Lightning's `ThroughputMonitor`, and its tuner, on one card and on two."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import lightning.fabric.utilities.throughput as fabric_throughput
import lightning_fabric.utilities.throughput
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ThroughputMonitor,
    throughput_monitor,
)
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gaudi import HPUPrecisionPlugin
from lightning_gaudi._core import vendor
from lightning_gaudi.hardware import GAUDIS
from tests.helpers.forked import fork_python
from tests.helpers.tiny import TinyModule, batches, hpu_trainer
from tests.helpers.trainers import run_trainers


class _Measured(TinyModule):
    flops_per_batch = 1000


def _fit(rank: int, folder: Path, num_ranks: int, precision: str) -> str:
    """The figures that were logged, as a table."""
    monitor = ThroughputMonitor(lambda batch: len(batch[0]), window_size=4)
    trainer = hpu_trainer(
        devices=num_ranks,
        max_steps=8,
        precision=precision,
        callbacks=[monitor],
        logger=CSVLogger(folder, version=0),
        log_every_n_steps=2,
    )
    trainer.fit(_Measured(), batches(8 * num_ranks))
    assert monitor.available_flops is None
    return (folder / "lightning_logs/version_0/metrics.csv").read_text() if rank == 0 else ""


@pytest.mark.slow_but("1-32-true")
@pytest.mark.parametrize(("num_ranks", "precision"), [(1, "32-true"), (2, "bf16-mixed")])
def test_throughput_is_logged_and_of_a_simulated_card_no_utilization(
    tmp_path: Path, num_ranks: int, precision: str
) -> None:
    table, *_ = run_trainers(_fit, tmp_path, tmp_path, num_ranks, precision, num_ranks=num_ranks)
    columns = table.splitlines()[0].split(",")
    assert "train/device/samples_per_sec" in columns
    assert "train/device/flops_per_sec" in columns
    assert "train/device/mfu" not in columns
    assert ("train/samples_per_sec" in columns) is (num_ranks > 1)


@pytest.fixture
def _on_a_gaudi(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device does not say that it is simulated."""
    known = vendor.metric
    monkeypatch.setattr(
        vendor, "metric", lambda name: None if name == "simulation" else known(name)
    )


MODULES = [
    fabric_throughput,
    throughput_monitor,
    lightning_fabric.utilities.throughput,
    pytorch_lightning.callbacks.throughput_monitor,
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
@pytest.mark.usefixtures("_on_a_gaudi")
def test_peaks_are_those_of_the_card(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    hpu = torch.device("hpu")
    for card in GAUDIS.values():
        monkeypatch.setattr(vendor, "device_name", lambda name=card.device_name: name)
        assert module.get_available_flops(hpu, torch.bfloat16) == card.peaks["bfloat16"]
        with pytest.warns(UserWarning, match=f"{card.device_name} the peak in bfloat16.* float16"):
            assert module.get_available_flops(hpu, torch.float16) is None
    assert module.get_available_flops(hpu, torch.bfloat16) == 1677 * 10**12  # a Gaudi 3
    assert module.get_available_flops(hpu, torch.float32) == 229 * 10**12
    monkeypatch.setattr(vendor, "device_name", lambda: "GAUDI9")
    with pytest.warns(UserWarning, match="no peak is known of 'GAUDI9', but of GAUDI, GAUDI2"):
        assert module.get_available_flops(hpu, torch.bfloat16) is None
    assert module.get_available_flops(torch.device("cpu"), torch.bfloat16) is None


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_simulated_card_has_no_peak_and_it_says_why(module: Any) -> None:
    with pytest.warns(UserWarning, match="this GAUDI2 is simulated and computes on the CPU"):
        assert module.get_available_flops(torch.device("hpu"), torch.bfloat16) is None


@pytest.mark.usefixtures("_on_a_gaudi")
def test_on_a_gaudi_utilization_is_logged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, version=0)
    monitor = ThroughputMonitor(lambda batch: len(batch[0]), window_size=4)
    trainer = hpu_trainer(
        max_steps=8, precision="bf16-mixed", callbacks=[monitor], logger=logger, log_every_n_steps=8
    )
    trainer.fit(_Measured(), batches(8))
    table = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    (row,) = csv.DictReader(table.splitlines())
    speed = float(row["train/device/flops_per_sec"])
    assert float(row["train/device/mfu"]) == pytest.approx(
        speed / GAUDIS["gaudi2"].peaks["bfloat16"]
    )


@pytest.mark.parametrize(
    "module", [fabric_throughput, throughput_monitor], ids=["fabric", "trainer"]
)
def test_dtype_is_the_one_that_is_computed_in(module: Any) -> None:
    dtypes = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "bf16-true": torch.bfloat16}
    for precision, dtype in dtypes.items():
        assert module._plugin_to_compute_dtype(HPUPrecisionPlugin(precision)) is dtype


class _Tuned(TinyModule):
    def __init__(self) -> None:
        super().__init__(0.0)
        self.batch_size, self.lr = 1, 1e-3

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        data = batches(100).dataset
        return DataLoader(data, batch_size=self.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.mark.slow_but("power")
@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_the_largest_batch_is_found_by_the_errors_of_a_full_card(mode: str, tmp_path: Path) -> None:
    result = fork_python(
        """
        import sys
        import torch
        from accelerate.utils.memory import should_reduce_batch_size
        from lightning.pytorch.tuner import Tuner
        from torch.utils.data import DataLoader, TensorDataset
        from lightning_gaudi import simulator
        from tests.helpers.tiny import NUM_FEATURES, TinyModule, hpu_trainer

        class Model(TinyModule):
            batch_size = 2
            def training_step(self, batch, batch_idx):
                torch.empty(len(batch[0]) << 20, device="hpu")  # 4 MiB a sample
                return super().training_step(batch, batch_idx)
            def train_dataloader(self):
                return DataLoader(TensorDataset(torch.ones(64, NUM_FEATURES)), self.batch_size)

        simulator.set_memory_limit(64 << 20)
        try:
            torch.empty(64 << 20, device="hpu")
        except RuntimeError as error:
            assert type(error) is RuntimeError
            assert should_reduce_batch_size(error)
        else:
            raise AssertionError("The card took more than it has.")
        model, trainer = Model(), hpu_trainer(max_steps=2, enable_checkpointing=True)
        kwargs = {"mode": sys.argv[1], "steps_per_trial": 1, "max_trials": 8}
        print("found", Tuner(trainer).scale_batch_size(model, **kwargs))
        trainer.fit(model)
        print("steps", trainer.global_step)
        """,
        mode,
        cwd=tmp_path,
    )
    found = int(re.search(r"found (\d+)", result.stdout)[1])
    assert (found == 8) if mode == "power" else (8 <= found < 16), result.stdout + result.stderr
    assert "steps 2" in result.stdout


@pytest.mark.slow
def test_batch_size_and_learning_rate_are_found_on_one_card(tmp_path: Path) -> None:
    model = _Tuned()
    trainer = hpu_trainer(
        max_epochs=1,
        callbacks=[
            BatchSizeFinder(max_trials=3, steps_per_trial=1),
            LearningRateFinder(num_training_steps=30),
        ],
        default_root_dir=tmp_path,
        enable_checkpointing=True,
    )
    trainer.fit(model)
    assert model.batch_size == 8
    assert model.lr != 1e-3
    assert trainer.global_step == 400 // 8
