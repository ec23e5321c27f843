"""Checks the Python packages, and what the simulated HPU is compiled with.

The packages are held to the releases, to the tested pairs, and to what is secure.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from lightning_gaudi._core import deepspeed_versions
from lightning_gaudi._version import __version__, name_page
from lightning_gaudi.releases import OLDEST, RELEASES, find_release, minor, numbers
from lightning_gaudi.simulator import activation, build, settings, toolchain
from lightning_gaudi.simulator.settings import SimulatorError
from lightning_gaudi.tools.doctor import hl_smi
from lightning_gaudi.tools.doctor.findings import (
    Finding,
    Level,
    error,
    from_message,
    note,
    ok,
    warning,
)
from lightning_gaudi.tools.doctor.machine import Machine, python

PLUGIN = "habana-torch-plugin"
"""The vendor's package for Python, whose version is that of the Gaudi software."""
LIGHTNINGS = ("lightning", "pytorch-lightning")
SAFE_LIGHTNING = "2.6.6"
"""The first release of Lightning without CVE-2026-58659: in older ones a checkpoint can name a
function that `load_from_checkpoint` calls."""
MALWARE = ("2.6.2", "2.6.3")
"""Releases of Lightning that were malware."""
TESTED_TRANSFORMERS = ("4.49.0", "5.24.0")
"""The oldest and the newest that the recipes are tested with."""
PACKAGES = (
    *("torch", PLUGIN, *LIGHTNINGS, "lightning-gaudi", "lightning-habana", "deepspeed"),
    *("transformers", "accelerate", "optimum-habana", "numpy"),
)
"""The packages that a report names, and that are compared between servers."""
_MIGRATING = name_page("Migrating to lightning-gaudi", "migration/from-lightning-habana")
_GUIDE = name_page("On a Gaudi", "how-to/on-a-gaudi#install-beside-the-vendors-torch")


def gaudi_software(machine: Machine) -> str | None:
    """Returns the release of the Gaudi software, real or simulated; None where there is none."""
    if machine.environment.get(settings.SIMULATE):
        key = machine.environment.get(settings.RELEASE) or list(settings.RELEASES)[-1]
        return settings.RELEASES[key].version if key in settings.RELEASES else None
    return machine.version(PLUGIN)


def is_simulated(machine: Machine) -> bool:
    """Returns whether the environment asks for simulated cards."""
    return bool(machine.environment.get(settings.SIMULATE))


def is_upstream(torch: str) -> bool | None:
    """Returns True for PyTorch's CPU build, False for the vendor's own, and None for another one.

    Source: Intel Gaudi PyTorch bridge 1.24.1, `torch/__init__.py`, which asks for one of the two.
    """
    local = torch.partition("+")[2]
    if local.startswith(("git", "hpu")):
        return False
    return True if not local or "cpu" in local else None


def check_python(machine: Machine) -> Iterator[Finding]:
    """Reports the Python that runs here, and whether this package is installed."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield ok("python", f"{platform.python_version()} at {python()}, {system}")
    installed = machine.version("lightning-gaudi")
    if installed is None:
        yield note(
            "lightning-gaudi",
            f"{__version__}, not installed but found on the path",
            "Without `pip install .` in its folder, `import torch` does not activate it: "
            "programs have to import lightning_gaudi.",
        )
    elif machine.environment.get("LIGHTNING_GAUDI_AUTOLOAD") == "0":
        yield warning(
            "lightning-gaudi",
            f"{installed} is switched off (LIGHTNING_GAUDI_AUTOLOAD=0)",
            'Unset it: accelerator="hpu" is not known until a program imports lightning_gaudi.',
        )
    else:
        yield ok("lightning-gaudi", installed)


def check_torch(machine: Machine) -> Iterator[Finding]:
    """Checks whether this package and the Gaudi software take the installed torch."""
    torch, software = machine.version("torch"), gaudi_software(machine)
    if torch is None:
        yield error(
            "torch",
            f"is not installed for {python()}",
            "Use the Python of the server's container; without a Gaudi: pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu",
        )
        return
    if problem := _unmet(machine, "torch", torch):
        yield error("torch", problem, f"Take an image of Gaudi software {OLDEST} or newer.")
    elif is_simulated(machine) or software is None:
        yield ok("torch", torch)
    else:
        yield from _check_pair(machine, torch, software)


def _check_pair(machine: Machine, torch: str, software: str) -> Iterator[Finding]:
    release = find_release(software)
    pair = f"torch {torch} with Gaudi software {software}"
    if release is None:
        if numbers(software)[:2] < numbers(OLDEST):
            yield error("torch", f"{pair}, which is older than {OLDEST}", "Take a newer image.")
        else:
            newest = RELEASES[-1].software
            yield note("torch", f"{pair}; {newest} is the newest release that is known here")
        return
    if minor(torch) != minor(release.torch):
        yield error(
            "torch",
            f"{pair}, which is built for torch {release.torch} and refuses another",
            "Take a fresh container, or run the vendor's installer again; then keep pip from "
            f"replacing torch: {_GUIDE}.",
        )
        return
    upstream = is_upstream(torch)
    if upstream is None:
        yield error(
            "torch",
            f"{pair}: it is neither the vendor's build nor PyTorch's for the CPU",
            "Take a fresh container, or: pip install --force-reinstall "
            f"torch=={release.torch} --index-url https://download.pytorch.org/whl/cpu",
        )
    elif upstream and machine.environment.get("PT_HPU_LAZY_MODE") == "1":
        yield error(
            "torch",
            f"{pair} is PyTorch's own build, which lazy mode (PT_HPU_LAZY_MODE=1) refuses",
            "Set PT_HPU_LAZY_MODE=0, or take an image pytorch-installer-*, with the vendor's.",
        )
    else:
        build = "PyTorch's build for the CPU" if upstream else "the vendor's build"
        yield ok("torch", f"{pair}, {build}")


def check_lightning(machine: Machine) -> Iterator[Finding]:
    """Checks whether the installed Lightning is supported and safe."""
    versions = {name: machine.version(name) for name in LIGHTNINGS}
    if not any(versions.values()):
        yield error("lightning", "is not installed", "pip install 'lightning>=2.6.6,<2.7'")
    for name, version in versions.items():
        if version is not None:
            yield _check_lightning(machine, name, version)
    if old := machine.version("lightning-habana"):
        yield warning(
            "lightning-habana",
            f"{old} is not needed any more, and stops at Gaudi software 1.18",
            f"pip uninstall lightning-habana; {_MIGRATING} says what replaces what.",
        )


def _check_lightning(machine: Machine, name: str, version: str) -> Finding:
    fix = f"pip install '{name}>={SAFE_LIGHTNING},<2.7'"
    if version in MALWARE:
        return error(
            name,
            f"{version} was malware",
            f"{fix}; and replace all passwords and keys that were on this machine.",
        )
    if problem := _unmet(machine, "lightning", version):
        return error(name, problem, fix)
    if Version(version) < Version(SAFE_LIGHTNING):
        return warning(
            name,
            f"{version} has CVE-2026-58659: a checkpoint can run code when it is loaded. This "
            "package refuses such checkpoints, under a Trainer and in `load_from_checkpoint`",
            fix,
        )
    return ok(name, version)


def check_deepspeed(machine: Machine) -> Iterator[Finding]:
    """Checks whether the installed DeepSpeed is supported, and was run with this torch."""
    version, torch = machine.version("deepspeed"), machine.version("torch")
    install = "pip install 'lightning-gaudi[deepspeed]'"
    if version is None:
        yield ok("deepspeed", "not installed; no strategy but deepspeed needs it")
    elif problem := _unmet(machine, "deepspeed", version):
        yield error("deepspeed", problem, f"{install}, or leave strategy='deepspeed' alone.")
    elif torch and not deepspeed_versions.is_tested(version, torch):
        yield note(
            "deepspeed",
            f"nobody is known to have run {version} with torch {torch} on a Gaudi; known: "
            f"{deepspeed_versions.known_runs()}",
            "Compare the first losses with another strategy's.",
        )
    else:
        yield ok("deepspeed", version)


def check_transformers(machine: Machine) -> Iterator[Finding]:
    """Checks whether the recipes are tested with the installed transformers."""
    version = machine.version("transformers")
    if version is None:
        yield ok("transformers", "not installed; the recipes and text generation need it")
    elif problem := _unmet(machine, "transformers", version):
        yield error("transformers", problem, "pip install 'lightning-gaudi[recipes]'")
    elif numbers(version)[:2] > numbers(TESTED_TRANSFORMERS[1])[:2]:
        oldest, newest = TESTED_TRANSFORMERS
        yield note("transformers", f"{version}; {oldest} to {newest} are tested")
    else:
        yield ok("transformers", version)


def _unmet(machine: Machine, name: str, version: str) -> str:
    """Returns why a version does not meet our requirements; "" if it does or none is known."""
    for requirement in map(Requirement, machine.requirements()):
        if requirement.name == name and not _contains(requirement, version):
            return f"{version} is not supported: {requirement.specifier}"
    return ""


def _contains(requirement: Requirement, version: str) -> bool:
    try:
        # Builds such as 2.11.0a0+git3f8c are of that release.
        found = Version(Version(version).base_version)
    except InvalidVersion:
        return True
    return requirement.specifier.contains(found, prereleases=True)


def check_compiler(machine: Machine) -> Iterator[Finding]:
    """Checks whether cards can be simulated: an error where that is asked for, else a note."""
    asked = is_simulated(machine)
    if not asked and hl_smi.has_driver(machine):
        # A Gaudi server needs no simulated cards.
        return
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
