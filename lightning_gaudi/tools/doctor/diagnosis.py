"""All checks of one machine, in the order in which things build on one another."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lightning_gaudi.tools.doctor import (
    cards,
    files,
    hl_smi,
    memory,
    mode,
    network,
    software,
    variables,
)
from lightning_gaudi.tools.doctor.findings import Finding, Report, error
from lightning_gaudi.tools.doctor.machine import Machine

Check = Callable[[Machine], Iterator[Finding]]


@dataclass(frozen=True)
class Options:
    """What to look at beside the machine itself."""

    checkpoints: str | None = None
    """The folder for checkpoints; None for the current one."""
    port: int | None = None
    """Where ranks meet; None for MASTER_PORT."""
    interface: str | None = None
    """Over which; None for those of the environment."""


CHECKS: tuple[Check, ...] = (
    *(software.check_python, cards.check_presence, cards.check_health, cards.check_driver),
    *(cards.check_firmware, cards.check_visible_modules, mode.check_mode),
    *(software.check_torch, software.check_lightning, software.check_deepspeed),
    *(software.check_transformers, variables.check_installed, variables.check_names),
    *(variables.check_mode, variables.check_harm, variables.check_recipe_cache),
    *(variables.check_scale_out, memory.check_huge_pages, memory.check_shared_memory),
    memory.check_memory_limit,
    *(memory.check_locked_memory, network.check_address, files.check_tmpdir, files.check_logs),
    software.check_compiler,
)
"""Those that need nothing but the machine."""


def diagnose(options: Options | None = None, machine: Machine | None = None) -> Report:
    """Looks at a machine.

    Args:
        options: What to look at beside it.
        machine: The machine; None for this one.

    Returns:
        What was found, and what must be the same on other servers.
    """
    options, machine = options or Options(), machine or Machine()
    checks: list[Check] = [
        *CHECKS,
        lambda each: network.check_port(each, options.port),
        lambda each: network.check_interfaces(each, options.interface),
        lambda each: files.check_checkpoints(each, options.checkpoints or "."),
    ]
    findings = [finding for check in checks for finding in _run(check, machine)]
    return Report(findings, facts(machine))


def _run(check: Check, machine: Machine) -> list[Finding]:
    """Gives what a check finds; that it failed, if it does: the others are worth more than that."""
    try:
        return [replace(each, found=machine.without_home(each.found)) for each in check(machine)]
    except Exception as failure:
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        return [
            error(
                "doctor",
                f"the check {name} failed: {type(failure).__name__}: {failure}",
                "This is a fault of lightning-gaudi: please report it.",
            )
        ]


def facts(machine: Machine) -> dict[str, str]:
    """Versions and settings by name; what is not there is left out."""
    versions = {name: machine.version(name) for name in software.PACKAGES}
    names = [card.name for card in hl_smi.read_cards(machine)]
    found = {
        "python": platform.python_version(),
        "cards": ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names))),
        "driver": hl_smi.driver(machine),
        **{f"firmware {part}": " ".join(sorted(set(each))) for part, each in _firmware(machine)},
        **{f"package {name}": version for name, version in versions.items()},
        **{f"variable {name}": value for name, value in variables.settings(machine).items()},
    }
    return {name: value for name, value in found.items() if value}


def _firmware(machine: Machine) -> list[tuple[str, list[str]]]:
    return list(hl_smi.firmware(machine).items()) if hl_smi.read_cards(machine) else []
