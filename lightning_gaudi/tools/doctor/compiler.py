"""Checks of what the simulated HPU is compiled with."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_gaudi.simulator import activation, build, settings, toolchain
from lightning_gaudi.simulator.settings import SimulatorError
from lightning_gaudi.tools.doctor import hl_smi, software
from lightning_gaudi.tools.doctor.findings import Finding, Level, from_message, note, ok
from lightning_gaudi.tools.doctor.machine import Machine


def check_compiler(machine: Machine) -> Iterator[Finding]:
    """Whether simulated cards can be had here: an error where they are asked for, else a note."""
    asked = software.is_simulated(machine)
    if not asked and hl_smi.has_driver(machine):
        return  # a Gaudi server needs none
    try:
        if asked:
            activation.refuse_vendor(
                f"{settings.SIMULATE}={machine.environment[settings.SIMULATE]}"
            )
            settings.read_settings()
            settings.read_rule_mode()
        built = build.find_built()
        compiler = None if built else toolchain.require_compiler()
    except SimulatorError as failure:
        yield from_message(Level.ERROR if asked else Level.NOTE, "simulator", str(failure))
        return
    if compiler is None:
        yield ok("simulator", "compiled for this torch")
    else:
        yield note(
            "simulator",
            f"not compiled yet; the first use does that, with {compiler.command[0]}, once",
        )
