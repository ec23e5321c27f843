"""Cards, driver and firmware, of recorded servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lightning_gaudi.tools.doctor import cards, hl_smi
from lightning_gaudi.tools.doctor.findings import Finding, Level
from lightning_gaudi.tools.doctor.machine import Answer
from tests.helpers.recorded import (
    DRIVER,
    FIRMWARE,
    MODULES,
    Recorded,
    gaudi2_server,
    laptop,
    smi_csv,
    smi_list,
)

Check = Callable[[Recorded], Iterator[Finding]]


def _one(check: Check, machine: Recorded) -> Finding:
    (found,) = check(machine)
    return found


def test_hl_smi_tells_index_module_name_driver_and_memory() -> None:
    found = hl_smi.read_cards(gaudi2_server())
    assert [card.module for card in found] == list(MODULES)
    assert found[0] == hl_smi.Card("0", "2", "HL-225", DRIVER, 98304, 768)


@pytest.mark.parametrize(
    ("name", "generation"),
    [("HL-205", 1), ("HL-225", 2), ("HL-288E", 2), ("HL-325L", 3), ("HL-999", None)],
)
def test_a_card_is_of_the_generation_of_its_name(name: str, generation: int | None) -> None:
    assert hl_smi.Card("0", "0", name, DRIVER, 0, 0).generation == generation


def test_firmware_is_read_part_by_part_as_published() -> None:
    text = """
        Firmware [FIT] Version          : Linux gaudi2 5.10.18-hl-gaudi2-1.12.1-fw-46.0.5-sec-6 #1
        Firmware [SPI] Version          : Preboot version hl-gaudi2-1.12.1-fw-46.0.5-sec-6 (Oct 12)
        Firmware [SPI] Version..........Preboot version hl-gaudi3-1.20.0-fw58.1.1-sec-2 (Feb 13)
    """
    machine = Recorded(commands={hl_smi.LIST: Answer(text)})
    expected = ["1.12.1-fw-46.0.5-sec-6"]
    assert hl_smi.firmware(machine) == {"FIT": expected, "SPI": expected}


def test_a_healthy_server_has_nothing_but_ok() -> None:
    machine = gaudi2_server()
    checks: tuple[Check, ...] = (
        cards.check_presence,
        cards.check_health,
        cards.check_driver,
        cards.check_firmware,
        cards.check_visible_modules,
    )
    found = [each for check in checks for each in check(machine)]
    assert {each.level for each in found} == {Level.OK}
    assert "8 x HL-225, 96 GiB" in [each.found for each in found]


def test_a_laptop_is_no_error() -> None:
    found = _one(cards.check_presence, laptop())
    assert found.level is Level.NOTE
    assert "no Gaudi here (there is no hl-smi on the PATH" in found.found
    assert "lightning-gaudi simulate" in found.fix


def test_the_vendors_package_without_a_card_is_an_error() -> None:
    machine = laptop()
    machine.packages["habana-torch-plugin"] = "1.24.1.482"
    found = _one(cards.check_presence, machine)
    assert found.level is Level.ERROR
    assert "--runtime=habana" in found.fix


def test_a_driver_without_hl_smi_is_an_error() -> None:
    machine = gaudi2_server()
    del machine.commands[hl_smi.QUERY]
    found = _one(cards.check_presence, machine)
    assert (found.level, found.area) == (Level.ERROR, "hl-smi")
    assert "there is no hl-smi on the PATH" in found.found


def test_hl_smi_that_fails_is_quoted() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = Answer("", "hl-smi failed with status 1: no devices")
    assert "no devices" in _one(cards.check_presence, machine).found


def test_cards_without_a_driver_are_seen_on_the_bus() -> None:
    machine = laptop()
    for index in range(2):
        folder = f"/sys/bus/pci/devices/0000:4{index}:00.0"
        machine.files |= {f"{folder}/vendor": "0x1da3", f"{folder}/class": "0x120000"}
    machine.files["/sys/bus/pci/devices/0000:01:00.0/vendor"] = "0x8086"
    found = _one(cards.check_presence, machine)
    assert (found.level, found.area) == (Level.ERROR, "driver")
    assert found.found.startswith("2 Gaudi cards are plugged in")
    assert "modprobe habanalabs" in found.fix


def test_simulated_cards_are_called_so() -> None:
    machine = laptop()
    machine.environment = {"LIGHTNING_GAUDI_SIMULATE": "8"}
    found = _one(cards.check_presence, machine)
    assert found.level is Level.NOTE
    assert found.found.startswith("simulated: 8 of gaudi2 on this CPU")


def test_simulated_cards_on_a_server_with_real_ones_are_a_warning() -> None:
    machine = gaudi2_server()
    machine.environment = {"LIGHTNING_GAUDI_SIMULATE": "1"}
    levels = [each.level for each in cards.check_presence(machine)]
    assert levels == [Level.NOTE, Level.WARNING]


@pytest.mark.parametrize(
    ("driver", "level"),
    [
        ("1.22.2-5c9d282", Level.ERROR),
        ("1.9.0-2eae87a", Level.ERROR),  # numbers, not letters
        ("1.24.0-2eae87a", Level.NOTE),
        ("1.23.1-2eae87a", Level.OK),
    ],
)
def test_the_driver_must_not_be_older_than_the_software(driver: str, level: Level) -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv(driver)
    found = _one(cards.check_driver, machine)
    assert found.level is level
    assert driver in found.found
    assert level is Level.OK or "1.23.0.695" in found.found


def test_the_driver_is_read_from_the_kernel_where_hl_smi_is_missing() -> None:
    machine = gaudi2_server()
    del machine.commands[hl_smi.QUERY]
    assert hl_smi.driver(machine) == DRIVER


def test_firmware_that_differs_between_cards_is_a_warning_with_both() -> None:
    machine = gaudi2_server()
    old = "1.22.1-fw-61.4.2-sec-3"
    machine.commands[hl_smi.LIST] = smi_list([FIRMWARE] * 6 + [old] * 2)
    found = _one(cards.check_firmware, machine)
    assert found.level is Level.WARNING
    assert f"{old} on 2 cards, {FIRMWARE} on 6 cards" in found.found
    assert "hl-fw-loader" in found.fix


def test_older_firmware_in_the_flash_is_a_note_and_another_that_runs_a_warning() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.LIST] = smi_list(["1.19.2-fw-57.2.4-sec-2"] * 8)
    assert _one(cards.check_firmware, machine).level is Level.NOTE
    machine.commands[hl_smi.LIST] = smi_list(system="1.22.1-fw-61.4.2-sec-3")
    found = _one(cards.check_firmware, machine)
    assert found.level is Level.WARNING
    assert found.found.startswith("OS 1.22.1")


def test_firmware_that_hl_smi_does_not_name_is_said() -> None:
    machine = gaudi2_server()
    del machine.commands[hl_smi.LIST]
    assert "not known: there is no hl-smi" in _one(cards.check_firmware, machine).found


@pytest.mark.parametrize(
    ("status", "level"), [("disabled", Level.ERROR), ("in reset", Level.WARNING)]
)
def test_a_card_that_is_not_operational_is_named(status: str, level: Level) -> None:
    machine = gaudi2_server()
    machine.files["/sys/class/accel/accel3/device/status"] = status
    found = _one(cards.check_health, machine)
    assert (found.level, found.found) == (level, f"accel3 is {status!r}")


def test_a_card_in_use_is_named_with_those_that_are_free() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv(used={"2": 42940, "6": 3219})
    found = _one(cards.check_health, machine)
    assert found.level is Level.WARNING
    assert "module 2: 42,940 MiB, module 6: 3,219 MiB" in found.found
    assert found.fix.endswith("HABANA_VISIBLE_MODULES=3,7,0,4,5,1")


def test_first_generation_cards_are_refused_by_new_software() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv(name="HL-205")
    assert "first-generation Gaudi" in _one(cards.check_health, machine).found
    machine.packages["habana-torch-plugin"] = "1.21.4.3"
    assert not list(cards.check_health(machine))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("all", "'all', which is no module"),
        ("0,0", "names a module twice"),
        ("0,9", "'9', which is no module"),
    ],
)
def test_visible_modules_must_be_a_list_of_modules(value: str, words: str) -> None:
    machine = gaudi2_server()
    machine.environment = {"HABANA_VISIBLE_MODULES": value}
    found = _one(cards.check_visible_modules, machine)
    assert found.level is Level.ERROR
    assert words in found.found
    assert found.fix.startswith("Write the numbers of the modules")


def test_visible_modules_must_be_here() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv(modules=("4", "5"))
    machine.environment = {"HABANA_VISIBLE_MODULES": "0,4"}
    found = _one(cards.check_visible_modules, machine)
    assert found.level is Level.ERROR
    assert "names 0, but here are 4, 5" in found.found
    machine.environment = {"HABANA_VISIBLE_MODULES": "4,5"}
    assert _one(cards.check_visible_modules, machine).level is Level.OK


def test_visible_modules_must_be_among_the_simulated_ones() -> None:
    machine = laptop()
    machine.environment = {"HABANA_VISIBLE_MODULES": "2", "LIGHTNING_GAUDI_SIMULATE": "2"}
    assert "names 2, but here are 0, 1" in _one(cards.check_visible_modules, machine).found


def test_a_gaudi_3_takes_one_module_or_an_even_number() -> None:
    machine = gaudi2_server()
    machine.commands[hl_smi.QUERY] = smi_csv(name="HL-325L")
    machine.packages["habana-torch-plugin"] = "1.24.1.482"
    for value, level in {"0,1,2": Level.ERROR, "0,1": Level.OK, "0": Level.OK}.items():
        machine.environment = {"HABANA_VISIBLE_MODULES": value}
        assert _one(cards.check_visible_modules, machine).level is level
