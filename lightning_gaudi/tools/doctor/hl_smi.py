"""Reads the cards of this server, their driver and firmware from `hl-smi` and the kernel.

Sources: Intel Gaudi documentation, "System Management Interface Tool (hl-smi)": options and fields;
output as published in Intel's guides for Gaudi nodes, 1.12 to 1.23; Linux,
`Documentation/ABI/testing/sysfs-driver-habanalabs` and `drivers/accel/habanalabs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lightning_gaudi.releases import numbers
from lightning_gaudi.tools.doctor.machine import Machine

DRIVER_VERSION = "/sys/module/habanalabs/version"
_DRIVER = "/sys/module/habanalabs"
_CARDS = "/sys/class/accel"
_PCI = "/sys/bus/pci/devices"
_PCI_VENDOR = "0x1da3"
_PCI_CLASS = "0x12"  # PCI's class of processing accelerators
_FIELDS = ("index", "module_id", "name", "driver_version", "memory.total", "memory.used")
QUERY = ("hl-smi", "-Q", ",".join(_FIELDS), "-f", "csv,noheader")
LIST = ("hl-smi", "-L")
_FIRMWARE = re.compile(r"Firmware \[(\w+)\] Version\s*:.*?\bhl-gaudi\d*-(\d+\.\d+\.\d+)(\S*)")
_GENERATIONS = {"HL-20": 1, "HL-22": 2, "HL-28": 2, "HL-3": 3}
"""The generations, by the beginning of a card's name."""


@dataclass(frozen=True)
class Card:
    """A card that the driver knows."""

    index: str
    module: str
    """Its slot in the server, which HABANA_VISIBLE_MODULES names."""
    name: str
    """Such as HL-225."""
    driver: str
    """The driver's version, with the commit: 1.23.0-2eae87a."""
    total_mib: int
    used_mib: int

    @property
    def generation(self) -> int | None:
        """1 to 3 for Gaudi 1 to 3; None for a name that is not known."""
        starts = (value for key, value in _GENERATIONS.items() if self.name.startswith(key))
        return next(starts, None)


def read_cards(machine: Machine) -> list[Card]:
    """Returns the cards that `hl-smi` lists; none where it does not answer."""
    rows = [line.split(",") for line in machine.run(*QUERY).text.splitlines()]
    return [_card([cell.strip() for cell in row]) for row in rows if len(row) == len(_FIELDS)]


def _card(cells: list[str]) -> Card:
    # Sizes come as "98304 MiB".
    total, used = (next(iter(numbers(cell)), 0) for cell in cells[4:])
    index, module, name, driver_version = cells[:4]
    return Card(index, module, name, driver_version, total, used)


def driver(machine: Machine) -> str | None:
    """Returns the version of the driver; None where there is none, or where it does not say."""
    return next((card.driver for card in read_cards(machine)), None) or machine.read(DRIVER_VERSION)


def has_driver(machine: Machine) -> bool:
    """Returns whether the kernel has the driver loaded."""
    return machine.exists(_DRIVER)


def firmware(machine: Machine) -> dict[str, list[str]]:
    """Returns the versions of each part (SPI, OS), such as 1.20.0-fw-58.0.0-sec-9, card by card.

    SPI is what lies in a card's flash; the driver loads the others when it starts.
    """
    found: dict[str, list[str]] = {}
    for part, release, rest in _FIRMWARE.findall(machine.run(*LIST).text):
        found.setdefault(part, []).append(release + rest)
    return found


def status(machine: Machine) -> dict[str, str]:
    """Returns the kernel's status of each card by name, which is "operational" if all is well."""
    if not has_driver(machine):
        # /sys/class/accel has the accelerators of all vendors.
        return {}
    paths = {name: f"{_CARDS}/{name}/device/status" for name in machine.names(_CARDS)}
    found = {name: machine.read(path) for name, path in paths.items()}
    return {name: text for name, text in found.items() if text}


def on_the_bus(machine: Machine) -> int:
    """Counts the vendor's accelerators that are plugged in, with or without a driver.

    Source: `drivers/accel/habanalabs/common/habanalabs_drv.c`: the vendor's number on PCI.
    """
    folders = [f"{_PCI}/{name}" for name in machine.names(_PCI)]
    return sum(
        machine.read(f"{folder}/vendor") == _PCI_VENDOR
        and (machine.read(f"{folder}/class") or "").startswith(_PCI_CLASS)
        for folder in folders
    )
