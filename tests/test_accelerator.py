from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.callbacks import DeviceStatsMonitor

from lightning_gaudi import HPUAccelerator
from lightning_gaudi._core import vendor
from lightning_gaudi.hardware import GAUDIS
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, TinyModule, batches, hpu_trainer


def test_all_cards_of_the_server_are_there() -> None:
    assert HPUAccelerator.is_available()
    assert HPUAccelerator.auto_device_count() == 8
    assert HPUAccelerator.name() == "hpu"
    assert AcceleratorRegistry["hpu"]["accelerator"] is HPUAccelerator


@pytest.mark.parametrize(
    ("devices", "cards"),
    [
        (1, [0]),
        (8, list(range(8))),
        (-1, list(range(8))),
        ("-1", list(range(8))),
        ("1", [0]),
        (" 3 ", [0, 1, 2]),
        ([0], [0]),
        ((2, 5), [2, 5]),
        ("0,", [0]),
        ("5, 2", [5, 2]),
    ],
)
def test_devices_name_cards(devices: Any, cards: list[int]) -> None:
    assert HPUAccelerator.parse_devices(devices) == cards


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (9, r"devices=9 asks for 9 HPUs, but this machine has 8 HPUs\. Pass devices=8 or fewer"),
        ("9", r"devices='9' asks for 9 HPUs"),
        ("0,9", r"devices='0,9' names HPU 9, but this machine has 8 HPUs, with the indices 0 to 7"),
        ([0, -1], r"devices=\[0, -1\] names HPU -1"),
        ([1, 1], r"devices=\[1, 1\] names a card twice"),
        (0, r"devices=0 asks for no card"),
        (-2, r"devices=-2 asks for no card"),
        ([], r"devices=\[\] names no card"),
        (",", r"devices=',' names no card"),
        ("two", r"devices='two' is not understood"),
        ("0,x", r"devices='0,x' is not understood"),
        (1.0, r"devices=1.0 is not understood"),
        (True, r"devices=True is not understood"),
        ([0.0], r"devices=\[0.0\] is not understood"),
        (None, r"devices=None is not understood"),
    ],
)
def test_wrong_devices_are_named_as_typed(devices: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        HPUAccelerator.parse_devices(devices)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (9, r"devices=9 asks for 9 HPUs"),
        ("0,9", r"devices='0,9' names HPU 9"),
        (0, r"devices=0"),
        ("0", r"devices='0'"),
        ([], r"devices=\[\]"),
    ],
)
def test_trainer_refuses_devices_as_typed(devices: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(devices=devices)


@pytest.mark.parametrize("devices", [1, "1", [0], "0,"])
def test_one_card_is_the_first_of_the_process(devices: Any) -> None:
    trainer = hpu_trainer(devices=devices)
    assert trainer.strategy.root_device == torch.device("hpu", 0)
    assert trainer.num_devices == 1


@pytest.mark.parametrize("devices", ["auto", -1, 8])
def test_all_cards_are_eight(devices: Any) -> None:
    trainer = hpu_trainer(devices=devices)
    assert trainer.num_devices == 8
    assert trainer.strategy.root_device == torch.device("hpu", 0)
    assert [device.index for device in trainer.strategy.parallel_devices] == list(range(8))


def test_visible_modules_are_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "2,3,6,7")
    assert HPUAccelerator.auto_device_count() == 4
    assert HPUAccelerator.parse_devices([1, 3]) == [1, 3]
    message = "asks for 5 HPUs, but HABANA_VISIBLE_MODULES leaves 4 HPUs of this machine's 8"
    with pytest.raises(MisconfigurationException, match=message):
        HPUAccelerator.parse_devices(5)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("all", "has 'all', which is no module"),
        ("", "has '', which is no module"),
        ("0,1,", "has '', which is no module"),
        ("0,8", "has '8', which is no module"),
        ("-1", "has '-1', which is no module"),
        ("0,1,0", "names a module twice"),
    ],
)
def test_visible_modules_must_be_a_list_of_modules(
    value: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", value)
    with pytest.raises(ValueError, match=f"HABANA_VISIBLE_MODULES={value!r} {what}.*0,1,2,3"):
        pl.Trainer(accelerator="hpu", devices=2, logger=False)


def test_one_card_of_any_is_the_one_this_process_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLS_MODULE_ID", "3")
    assert HPUAccelerator.parse_devices(1) == [3]
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "2,3,6,7")
    assert HPUAccelerator.parse_devices("1") == [1]
    trainer = hpu_trainer(devices=1, max_steps=1)
    trainer.fit(TinyModule(), batches(1))
    assert os.environ["HLS_MODULE_ID"] == "3"


@pytest.mark.slow_but("devices0-3")
@pytest.mark.parametrize(("devices", "module"), [([3], "3"), (1, "None"), ([0], "None")])
def test_a_named_card_is_selected_before_it_is_used(devices: Any, module: str) -> None:
    result = fork_python(
        f"""
        import os
        from tests.helpers.tiny import TinyModule, batches, hpu_trainer
        trainer = hpu_trainer(devices={devices}, max_steps=1)
        trainer.fit(TinyModule(), batches(1))
        print(os.environ.get("HLS_MODULE_ID"), trainer.strategy.root_device)
        """,
        env={"HLS_MODULE_ID": None, "LIGHTNING_GAUDI_SIMULATE": "8"},
    )
    assert result.stdout.split() == [module, "hpu:0"]


def test_a_process_keeps_the_card_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HLS_MODULE_ID", raising=False)
    torch.ones(1, device="hpu")
    with pytest.raises(MisconfigurationException, match=r"drive module 3, .* bound to module 0"):
        hpu_trainer(devices=[3], max_steps=1).fit(TinyModule(), batches(1))
    monkeypatch.setenv("HLS_MODULE_ID", "0")
    message = "drives module 0, as HLS_MODULE_ID says, but the devices of this run are .* 3"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(devices=[3], max_steps=1).fit(TinyModule(), batches(1))


def test_device_stats_are_the_vendors_memory_figures() -> None:
    stats = HPUAccelerator().get_device_stats("hpu")
    assert stats == vendor.memory_stats()
    assert stats["Limit"] == GAUDIS["gaudi2"].memory_bytes


class _Watched(TinyModule):
    """Notes how often the host has waited when a step starts."""

    def __init__(self) -> None:
        super().__init__()
        self.num_waits: list[int] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.num_waits.append(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]


@pytest.mark.parametrize("is_monitored", [True, False])
def test_device_stats_monitor_logs_them_in_log_steps_without_a_wait(
    tmp_path: Any, is_monitored: bool
) -> None:
    trainer = hpu_trainer(
        logger=pl.loggers.CSVLogger(str(tmp_path)),
        callbacks=[DeviceStatsMonitor()] if is_monitored else [],
        max_steps=4,
        log_every_n_steps=2,
    )
    model = _Watched()
    trainer.fit(model, batches(4))
    # Lightning reads nothing here; the losses are looked at behind the second step.
    assert [after - model.num_waits[0] for after in model.num_waits] == [0, 0, 1, 1]
    rows = [row for file in tmp_path.rglob("metrics.csv") for row in _rows(file)]
    assert [row["step"] for row in rows] == ["1", "1", "3", "3"] * is_monitored
    for row in rows:
        name = "DeviceStatsMonitor.on_train_batch_end/"
        if row[f"{name}InUse"]:
            assert 0 < int(row[f"{name}InUse"]) <= int(row[f"{name}MaxInUse"])
            assert int(row[f"{name}Limit"]) == GAUDIS["gaudi2"].memory_bytes


def _rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def test_instance_and_auto_train_on_hpu() -> None:
    instance = pl.Trainer(accelerator=HPUAccelerator(), devices=1, **QUIET)
    auto = pl.Trainer(accelerator="auto", devices=1, **QUIET)
    for trainer in (instance, auto):
        model = TinyModule()
        trainer.fit_loop.max_epochs = 1
        trainer.fit(model, batches(2))
        assert {loss.device.type for loss in model.losses} == {"hpu"}


def test_torch_knows_of_the_device_before_anything_is_computed() -> None:
    """Else activation checkpointing would keep no random state of it."""
    result = fork_python(
        """
        import torch
        from lightning_gaudi import HPUAccelerator
        print(torch.hpu._initialized)
        HPUAccelerator().setup_device(torch.device("hpu", 0))
        print(torch.hpu._initialized)
        """
    )
    assert result.stdout.split() == ["False", "True"]


def test_hpu_is_not_a_device_of_another_type() -> None:
    with pytest.raises(MisconfigurationException, match="was given the device cpu"):
        HPUAccelerator().setup_device(torch.device("cpu"))


@pytest.mark.parametrize("accelerator", ["'hpu'", "pl.accelerators.HPUAccelerator()"])
def test_without_card_or_simulator_one_error_says_what_to_do(accelerator: str) -> None:
    result = fork_python(
        f"""
        import lightning.pytorch as pl
        pl.Trainer(accelerator={accelerator}, logger=False)
        """,
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        check=False,
    )
    error = result.stderr.strip().splitlines()[-1]
    typed = accelerator.replace("pl.accelerators.", "")
    assert f"accelerator={typed} needs an Intel Gaudi card" in error
    assert "habana_frameworks.torch is not installed" in error
    assert "LIGHTNING_GAUDI_SIMULATE=1" in error
    assert "`lightning-gaudi simulate -- python ...`" in error


def test_auto_without_card_takes_the_cpu() -> None:
    result = fork_python(
        """
        import lightning.pytorch as pl
        trainer = pl.Trainer(accelerator="auto", logger=False)
        print(type(trainer.accelerator).__name__, trainer.strategy.root_device)
        """,
        env={"LIGHTNING_GAUDI_SIMULATE": None},
    )
    assert result.stdout.strip() == "CPUAccelerator cpu"
