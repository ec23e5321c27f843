"""Runs all checks of one machine, in the order in which things build on one another."""

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
    """The options of a diagnosis."""

    checkpoints: str | None = None
    """The folder for checkpoints; None for the current one."""
    port: int | None = None
    """The port at which ranks meet; None for MASTER_PORT."""
    interface: str | None = None
    """The network interface between servers; None for those of the environment."""


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
"""The checks that need no option."""


def diagnose(options: Options | None = None, machine: Machine | None = None) -> Report:
    """Looks at a machine.

    Args:
        options: The options; None for the defaults.
        machine: The machine; None for this one.

    Returns:
        The findings, and the facts that must be the same on other servers.
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
    """Returns what a check finds, or the finding that it failed."""
    try:
        return [replace(each, found=machine.without_home(each.found)) for each in check(machine)]
    # A check that fails on a strange machine must not cost the findings of the others.
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
    """Returns versions and settings by name, without those that are not there."""
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
