"""Checks the environment for what is missing, misspelt, contradictory or harmful."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from lightning_gaudi._core.precision import autocast_ops
from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import is_switched_on
from lightning_gaudi.tools.doctor import hl_smi, software
from lightning_gaudi.tools.doctor.files import file_system, is_remote
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
from lightning_gaudi.untrusted import HIDDEN, hide_secrets, is_secret, printable

INSTALLED = {
    "GC_KERNEL_PATH": "/usr/lib/habanalabs/libtpc_kernels.so",
    "HABANA_LOGS": "/var/log/habana_logs/",
    "HABANA_SCAL_BIN_PATH": "/opt/habanalabs/engines_fw",
    "HABANA_PLUGINS_LIB_PATH": "/opt/habanalabs/habana_plugins",
}
"""The variables that the installation sets, with the values of the vendor's images.

Source: HabanaAI/Setup_and_Install, `dockerfiles/base/Dockerfile.ubuntu24.04`.
"""
OURS = tuple(
    f"LIGHTNING_GAUDI_{name}"
    for name in (
        *("AUDIT", "AUDIT_STEPS", "AUTOLOAD", "CACHE_DIR", "CARD", "COMPILE", "FUSED_ATTENTION"),
        *("JOB_ID", "RELIABILITY", "SIMULATE"),
        *("SIMULATE_CARD", "SIMULATE_DRY", "SIMULATE_RELEASE", "SIMULATE_RULES"),
        "SIMULATE_RULES_EXEMPT",
        *("SIMULATE_SERVER", "TEST_ON"),
    )
)
"""The variables of this package, and of its tests on a card."""
_RUNTIME_ERROR = "HABANA_RUNTIME_ERROR"
"""The variable that the vendor's runtime sets in a container that it could not prepare.

Source: HabanaAI/habana-container-runtime, README, "Environment variables (OCI spec)".
"""
_THEIRS = ("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID", *INSTALLED)
_SHOWN = re.compile(
    r"(?:HABANA|HLS|PT|HCCL|HCL|GC|FI|RDMAV|MLX5|GLOO|LIGHTNING_GAUDI|DS)_|LD_LIBRARY_PATH$"
    r"|MASTER_(?:ADDR|PORT)$|PYTHONPATH$|OMP_NUM_THREADS$"
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_LAZY = "PT_HPU_LAZY_MODE"
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def settings(machine: Machine) -> dict[str, str]:
    """Returns the variables that a report shows, without secrets and this user's name."""
    found = {}
    for name in sorted(filter(_SHOWN.match, machine.environment)):
        value = hide_secrets(machine.environment[name])
        value = HIDDEN if _SECRET.search(name) or is_secret(name) else value
        found[name] = machine.without_home(value)
    return found


def check_installed(machine: Machine) -> Iterator[Finding]:
    """Checks whether the variables of the installation are set, and their paths exist.

    Source: "Graph compile failed" on servers that they do not reach (huggingface/optimum-habana,
    pull request 1779).
    """
    if not hl_smi.read_cards(machine) or machine.version(software.PLUGIN) is None:
        return
    missing = [name for name in INSTALLED if not machine.environment.get(name)]
    if missing:
        yield error(
            "variables",
            f"{', '.join(missing)} not set: a card may compile no graph (Graph compile failed)",
            "Start Python from a login shell, or with `bash -c 'for f in /etc/profile.d/habanalabs"
            '*.sh; do source "$f"; done; exec python3 ...\'`.',
        )
    for name in INSTALLED:
        for path in filter(None, machine.environment.get(name, "").split(":")):
            if not machine.exists(path):
                yield error(
                    "variables",
                    f"{name}={path}, which does not exist",
                    f"The vendor's images have {name}={INSTALLED[name]}.",
                )


def check_names(machine: Machine) -> Iterator[Finding]:
    """Checks for variables that nothing reads, because their names are probably misspelt."""
    for name in machine.environment:
        if meant := _meant(name):
            yield warning("variables", f"{name} is read by nothing", f"Did you mean {meant}?")


def _meant(name: str) -> str | None:
    if name.startswith("LIGHTNING_GAUDI_"):
        close = difflib.get_close_matches(name, OURS, 1, 0)
        return None if name in OURS else close[0]
    if name.startswith(("HABANA_", "HLS_")) and name not in _THEIRS:
        return next(iter(difflib.get_close_matches(name, _THEIRS, 1, 0.93)), None)
    return vendor_names.misspelt_flag(name)


def check_mode(machine: Machine) -> Iterator[Finding]:
    """Checks whether one of lazy and eager mode is asked for, in a way that is understood."""
    environment = machine.environment
    lazy, asked = environment.get(_LAZY), environment.get("LIGHTNING_GAUDI_COMPILE")
    if lazy not in (None, "", "0", "1"):
        fix = "Set it to 1 for lazy or 0 for eager mode."
        yield warning("mode", f"{_LAZY}={lazy} is neither", fix)
    if lazy == "1" and asked not in (None, "", "none"):
        yield warning(
            "mode",
            f"{_LAZY}=1 is lazy mode, where torch compiles nothing, but LIGHTNING_GAUDI_COMPILE="
            f"{asked}",
            f"Set {_LAZY}=0 for torch.compile, or leave LIGHTNING_GAUDI_COMPILE out.",
        )
    collectives = "PT_HPU_ENABLE_LAZY_COLLECTIVES"
    if lazy == "0" and is_switched_on(environment.get(collectives, "")):
        found = f"{collectives} has no meaning in eager mode ({_LAZY}=0)"
        yield note("mode", found, f"Unset it, or set {_LAZY}=1.")


def check_harm(machine: Machine) -> Iterator[Finding]:
    """Reports variables that make a run fail, or its results wrong, whatever the program does."""
    environment = machine.environment
    if problem := environment.get(_RUNTIME_ERROR):
        yield error(
            "cards",
            f"{_RUNTIME_ERROR}: the container runtime could not prepare this container: "
            f"{printable(problem)}",
            "Look at the log of habana-container-runtime on the server, and at the cards that the "
            "container asks for (habana.ai/gaudi, HABANA_VISIBLE_DEVICES).",
        )
    if is_switched_on(environment.get("PT_COMPILE_ONLY_MODE", "")):
        yield error(
            "variables", "PT_COMPILE_ONLY_MODE computes nothing: results are garbage", "Unset it."
        )
    if is_switched_on(environment.get("PT_HPU_GPU_MIGRATION", "")):
        yield warning(
            "variables",
            "PT_HPU_GPU_MIGRATION has torch.cuda stand for the card; Lightning then sees GPUs",
            "Unset it: accelerator='hpu' needs no migration.",
        )
    if environment.get("HLS_MODULE_ID") and not any(map(environment.get, _LOCAL_RANKS)):
        yield warning(
            "modules",
            f"HLS_MODULE_ID={environment['HLS_MODULE_ID']} binds all ranks to one card",
            "Unset it; HABANA_VISIBLE_MODULES chooses cards.",
        )
    if environment.get("DS_ACCELERATOR", "hpu") != "hpu":
        yield error(
            "deepspeed",
            f"DS_ACCELERATOR={environment['DS_ACCELERATOR']} has DeepSpeed compute elsewhere",
            "Unset it, or set it to hpu.",
        )
    try:
        autocast_ops.check_op_lists(environment)
    except ValueError as failure:
        yield from_message(Level.ERROR, "autocast", str(failure))


def check_recipe_cache(machine: Machine) -> Iterator[Finding]:
    """Checks whether processes can share the cache of compiled graphs.

    Source: Intel Gaudi documentation, "Runtime environment variables": path, whether to clear it at
    the start, and its size in MB; a disk of this machine, because it needs file locks.
    """
    name = "PT_HPU_RECIPE_CACHE_CONFIG"
    value = machine.environment.get(name)
    if not value:
        return
    path, *rest = value.split(",")
    kind = file_system(machine, path)
    if not 2 <= len(rest) <= 3 or rest[0].lower() not in ("true", "false") or not rest[1].isdigit():
        yield error(
            "recipe cache",
            f"{name}={value} is not understood",
            f"As in {name}=/tmp/recipes,false,1024: path, whether to clear it at the start, MB.",
        )
    elif path and is_remote(kind):
        yield warning(
            "recipe cache",
            f"{name}: {path} is on {kind}, where the vendor warns of unpredictable behavior",
            "Name a folder on a disk of this server.",
        )
    else:
        yield ok("recipe cache", f"{name}={value}")


def check_scale_out(machine: Machine) -> Iterator[Finding]:
    """Checks whether all variables are set that direct transfers over the host's NICs need.

    Source: Intel Gaudi documentation, "Scale-out via host NIC".
    """
    environment = machine.environment
    asking = {"FI_EFA_USE_DEVICE_RDMA": "1", "MLX5_SCATTER_TO_CQE": "0"}
    found = [name for name, value in asking.items() if environment.get(name) == value]
    if found and environment.get("RDMAV_FORK_SAFE") != "1":
        yield warning(
            "scale-out",
            f"{found[0]}={asking[found[0]]} asks for direct transfers, which need "
            f"RDMAV_FORK_SAFE=1",
            "Set RDMAV_FORK_SAFE=1 on all servers.",
        )
    if environment.get("HCCL_OVER_OFI") == "1":
        yield note(
            "scale-out",
            "HCCL_OVER_OFI=1 sends through the host's memory, be there faster ways or not",
            "Unset it to have HCCL choose.",
        )
