"""Checks the cards: which there are, whether they are well, and whether driver and firmware fit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightning_gaudi import hardware
from lightning_gaudi._core.vendor import parse_modules
from lightning_gaudi.releases import LAST_WITH_FIRST_GAUDI, minor, numbers
from lightning_gaudi.simulator import settings
from lightning_gaudi.tools.doctor import hl_smi, software
from lightning_gaudi.tools.doctor.findings import (
    Finding,
    Level,
    error,
    from_message,
    note,
    ok,
    warning,
)
from lightning_gaudi.tools.doctor.machine import Machine

_VISIBLE = "HABANA_VISIBLE_MODULES"
_IDLE_MIB = 1536
"""The memory in use from which on a card counts as busy.

It is twice the 768 MiB of an idle card of 96 GiB in every published output of hl-smi.
"""
_GUIDE = "https://docs.habana.ai/en/latest/Installation_Guide/Driver_Installation.html"
_SIMULATE = "to try a program without a card: lightning-gaudi simulate -- python train.py"


def check_presence(machine: Machine) -> Iterator[Finding]:
    """Reports which cards there are, or why none is seen."""
    cards, simulated = hl_smi.read_cards(machine), machine.environment.get(settings.SIMULATE)
    if simulated:
        card = machine.environment.get(settings.CARD) or "gaudi2"
        yield note(
            "cards",
            f"simulated: {simulated} of {card} on this CPU ({settings.SIMULATE}={simulated}); "
            "results are real, speed and limits are not a Gaudi's",
            f"To use Gaudi cards, unset {settings.SIMULATE}.",
        )
        if hl_smi.has_driver(machine):
            yield warning(
                "cards",
                "this server has the driver of real cards, which are not used",
                f"Unset {settings.SIMULATE} to train on them.",
            )
    elif cards:
        names = sorted({card.name for card in cards})
        gib = max(card.total_mib for card in cards) / 1024
        yield ok("cards", f"{len(cards)} x {', '.join(names)}, {gib:.0f} GiB")
    else:
        yield _why_no_card(machine)


def _why_no_card(machine: Machine) -> Finding:
    problem = machine.run(*hl_smi.QUERY).problem or "hl-smi lists no card"
    # From the outside in: the driver, the PCI bus, the Python package. The first that is there says
    # which step of an installation is missing.
    plugged = hl_smi.on_the_bus(machine)
    if hl_smi.has_driver(machine):
        return error(
            "hl-smi",
            f"the driver is loaded, but {problem}",
            "In a container: start it with --runtime=habana -e HABANA_VISIBLE_DEVICES=all. On the "
            "server: install habanalabs-firmware-tools of the driver's release, and see `dmesg`.",
        )
    if plugged:
        return error(
            "driver",
            f"{plugged} Gaudi cards are plugged in, but the kernel has no driver for them "
            f"loaded ({problem})",
            f"`modprobe habanalabs`; after an update of the kernel install it anew: {_GUIDE}",
        )
    if machine.version(software.PLUGIN):
        return error(
            "cards",
            f"the vendor's package {software.PLUGIN} is installed, but there is no Gaudi here "
            f"({problem})",
            "In a container: start it with --runtime=habana -e HABANA_VISIBLE_DEVICES=all; "
            f"{_SIMULATE}, in an environment without {software.PLUGIN}.",
        )
    return note(
        "cards",
        f"no Gaudi here ({problem}, no driver, nothing on the PCI bus)",
        f"Nothing, if this is where you write programs; {_SIMULATE}.",
    )


def check_driver(machine: Machine) -> Iterator[Finding]:
    """Checks whether the driver is of the release of the Gaudi software.

    Source: `Device acquire failed` is what an older driver ends in (huggingface/tgi-gaudi, pull
    request 182: software 1.16 on driver 1.15); software 1.23 was run on driver 1.24.
    """
    driver, installed = hl_smi.driver(machine), software.gaudi_software(machine)
    if driver is None or software.is_simulated(machine):
        return
    if installed is None:
        yield note("driver", f"{driver}; no Gaudi software for Python is installed beside it")
        return
    found = f"driver {driver} and Gaudi software {installed}"
    if numbers(minor(driver)) < numbers(minor(installed)):
        yield error(
            "driver",
            f"{found}: the driver is older, and a card may not be acquired",
            f"Install the driver of {minor(installed)} on the server ({_GUIDE}), or take an image "
            f"of {minor(driver)}.",
        )
    elif minor(driver) != minor(installed):
        yield note(
            "driver",
            f"{found}: the driver is newer, which was seen to work",
            f"If a card is not acquired, take an image of {minor(driver)}.",
        )
    else:
        yield ok("driver", f"{driver}, as the Gaudi software")


def check_firmware(machine: Machine) -> Iterator[Finding]:
    """Checks whether all cards have the same firmware, of the driver's release."""
    if not hl_smi.read_cards(machine):
        return
    driver = minor(hl_smi.driver(machine) or "")
    parts = hl_smi.firmware(machine)
    if not parts:
        problem = machine.run(*hl_smi.LIST).problem or "`hl-smi -L` names none"
        yield warning("firmware", f"not known: {problem}", "Run `hl-smi -L` and see what it says.")
        return
    wrong = [_firmware(part, versions, driver) for part, versions in parts.items()]
    yield from filter(None, wrong)
    if not any(wrong):
        each = ", ".join(f"{part} {versions[0]}" for part, versions in parts.items())
        yield ok("firmware", f"one on all cards: {each}")


def _firmware(part: str, versions: list[str], driver: str) -> Finding | None:
    """Returns what is wrong with a part of the firmware, if something is."""
    upgrade = "With no job on the cards, run the vendor's hl-fw-loader of the driver's release."
    different = sorted(set(versions))
    if len(different) > 1:
        each = ", ".join(f"{each} on {versions.count(each)} cards" for each in different)
        return warning("firmware", f"{part}: {each}", upgrade)
    found = f"{part} {different[0]} with driver {driver}"
    # SPI lies in the card's flash and may be older: Intel's Enterprise Inference asks for SPI
    # 1.19.2 or newer with driver 1.22.2. The driver loads the other parts, of which it brings its
    # own.
    if part == "SPI" and numbers(minor(different[0])) < numbers(driver):
        return note("firmware", f"{found}: older, which may do", upgrade)
    return None if minor(different[0]) == driver else warning("firmware", found, upgrade)


def check_health(machine: Machine) -> Iterator[Finding]:
    """Checks whether each card is operational, free, and supported by the Gaudi software."""
    states = hl_smi.status(machine)
    wrong = {name: text for name, text in states.items() if text.lower() != "operational"}
    broken = any(text.lower() in ("disabled", "needs reset") for text in wrong.values())
    if wrong:
        level = error if broken else warning
        yield level(
            "cards",
            ", ".join(f"{name} is {text!r}" for name, text in wrong.items()),
            "See `dmesg | grep habanalabs`; `hl-smi -r -i <pci address>` resets a card, as root, "
            "with no job on it."
            if broken
            else "It should pass within minutes: look again.",
        )
    cards = hl_smi.read_cards(machine)
    if busy := [card for card in cards if card.used_mib > _IDLE_MIB]:
        each = ", ".join(f"module {card.module}: {card.used_mib:,} MiB" for card in busy)
        yield warning(
            "cards",
            f"in use by another program ({each}); a card serves one process",
            f"End it (`hl-smi` names it), or use the others: {_VISIBLE}="
            + (",".join(card.module for card in cards if card not in busy) or "..."),
        )
    if any(card.generation == 1 for card in cards):
        installed = software.gaudi_software(machine)
        if installed and numbers(installed)[:2] > LAST_WITH_FIRST_GAUDI:
            yield error(
                "cards",
                f"first-generation Gaudi, which Gaudi software {installed} does not drive",
                "Take an image of 1.21, the last that does.",
            )


def check_visible_modules(machine: Machine) -> Iterator[Finding]:
    """Checks whether HABANA_VISIBLE_MODULES names modules that are here."""
    value = machine.environment.get(_VISIBLE)
    if value is None:
        return
    try:
        modules = parse_modules(value)
    except ValueError as failure:
        yield from_message(Level.ERROR, "modules", str(failure))
        return
    cards = hl_smi.read_cards(machine)
    here = _modules_here(machine)
    installed = software.gaudi_software(machine) or ""
    if missing := [module for module in modules if here and module not in here]:
        yield error(
            "modules",
            f"{_VISIBLE}={value} names {', '.join(missing)}, but here are {', '.join(here)}",
            f"{_VISIBLE}={','.join(here)}, or unset it. `hl-smi -Q index,module_id -f csv` lists "
            "them.",
        )
    elif any(
        hardware.refuses_number(len(modules), card.generation, numbers(installed)) for card in cards
    ):
        yield error(
            "modules",
            f"{_VISIBLE}={value} names {len(modules)}; a Gaudi 3 takes one or an even number",
            "Name one more or one less.",
        )
    else:
        yield ok("modules", f"{_VISIBLE}={value}: {len(modules)} cards of this job")


def _modules_here(machine: Machine) -> list[str]:
    """Returns the modules of the cards, real or simulated; none where that is not known."""
    simulated = machine.environment.get(settings.SIMULATE, "")
    if re.fullmatch("[0-9]{1,3}", simulated):
        return [str(index) for index in range(int(simulated))]
    return sorted(card.module for card in hl_smi.read_cards(machine))
