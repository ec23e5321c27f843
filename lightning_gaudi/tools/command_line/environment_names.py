"""Lists the variables that a YAML file may set, and the values that they may have.

A file may come from anybody. What it sets is read by the vendor's package, by torch and by this
one, some of which load code from where a variable says, or trust what it says. So a name is listed
only if all that it changes is how a run computes, what it writes to a log, or how many threads it
has. All that the published configurations and the documentation set is listed. Everything else is
set where the program is started.
"""

from __future__ import annotations

import re

from lightning_gaudi._core.precision import autocast_ops

_SWITCH = r"(?i:0|1|true|false|yes|no|on|off|y|n|t|f)"
_NUMBER = r"[0-9]{1,12}"
_NAME = r"[A-Za-z0-9_.,:^+-]{1,200}"
_PATH = r"[^\x00-\x1f\x7f]{0,4096}"

_MODE = {
    "PT_HPU_LAZY_MODE": r"[0-2]",
    "PT_HPU_ENABLE_LAZY_COLLECTIVES": _SWITCH,
    "PT_HPU_LAZY_ACC_PAR_MODE": _SWITCH,
    "PT_HPU_MAX_COMPOUND_OP_SIZE": _NUMBER,
    "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES": _SWITCH,
    "PT_HPU_GPU_MIGRATION": _SWITCH,
    "PT_HPU_OVERRIDE_LINEAR_MATMUL_EAGER": _SWITCH,
}
"""How operators gather in graphs; the published configurations set the first three."""

_NUMERICS = {
    **dict.fromkeys(autocast_ops.VARIABLES, _PATH),  # files of which every line is compared
    "PT_ENABLE_INT64_SUPPORT": _SWITCH,
    "PT_HPU_ENABLE_DIV_PRECISE": _SWITCH,
    "PT_HPU_ENABLE_VALID_DATA_RANGE_CHECK": _SWITCH,
    "PT_HPU_FORCE_TANH_FOR_GELU": _SWITCH,
    "PT_HPU_STOCHASTIC_ROUNDING_MODE": _NUMBER,
    "PT_HPU_USE_UNSORTED_SCATTER_ADD": _SWITCH,
    "PT_TE_CUSTOM_OP": _SWITCH,
}
"""Which operators compute in which precision; `docs/reference/rules.md` advises the switches."""

_MEMORY = {
    "PT_HPU_POOL_MEM_ACQUIRE_PERC": _NUMBER,
    "PT_HPU_POOL_STRATEGY": _NUMBER,
    "PT_HPU_INITIAL_WORKSPACE_SIZE": _NUMBER,
    "PT_ENABLE_MEMORY_DEFRAGMENTATION": _SWITCH,
    "PT_ENABLE_WORKSPACE_MEMORY_SHRINK": _SWITCH,
    # The folder, whether to empty it at the start, and its size: a file may not have a folder
    # emptied.
    "PT_HPU_RECIPE_CACHE_CONFIG": r"[^\x00-\x1f\x7f,]{0,4096}"
    rf"(,(?i:false|0)?(,{_NUMBER}(,(?i:false|0))?)?)?",
}
"""How the card's memory is kept, and where compiled graphs are cached."""

_COLLECTIVES = {"HCCL_OVER_OFI": _SWITCH, "HCCL_SOCKET_IFNAME": _NAME}
"""Which network cards the ranks use."""

_LOGS = {"HABANA_LOGS": _PATH, "HABANA_PROFILE": _NAME, "LOG_LEVEL_ALL": r"[0-6]"}
"""What the vendor's libraries write, and where."""

_HOST = {
    "OMP_NUM_THREADS": _NUMBER,
    "MKL_NUM_THREADS": _NUMBER,
    "TOKENIZERS_PARALLELISM": _SWITCH,
    "HF_HUB_OFFLINE": _SWITCH,
    "HF_DATASETS_OFFLINE": _SWITCH,
}
"""How many threads a rank has on the host, and whether models and data may be downloaded."""

_OURS = {
    "LIGHTNING_GAUDI_COMPILE": r"[A-Za-z0-9_=.,: -]{1,200}",
    "LIGHTNING_GAUDI_FUSED_ATTENTION": r"[01]?",
    "LIGHTNING_GAUDI_RELIABILITY": r"[A-Za-z0-9_=., -]{1,400}",
    "LIGHTNING_GAUDI_SIMULATE_CARD": _NAME,
    "LIGHTNING_GAUDI_SIMULATE_RELEASE": _NAME,
    "LIGHTNING_GAUDI_SIMULATE_RULES": _NAME,
    "LIGHTNING_GAUDI_SIMULATE_RULES_EXEMPT": r"[A-Za-z0-9_., -]{0,400}",
}
"""This package's own."""

VALUES = {**_MODE, **_NUMERICS, **_MEMORY, **_COLLECTIVES, **_LOGS, **_HOST, **_OURS}
"""The patterns of the values, by name of the variable."""

_RELIABILITY = "LIGHTNING_GAUDI_RELIABILITY"
_TRUST = "trust_checkpoints"

_CODE = re.compile(
    r"(LD|DYLD|PYTHON|GLIBC|BASH|CXX|CC$|CFLAGS|PATH$|GC_|CUDA_)|.*(_PATH|_LIB|_DIR|_HOME|_CACHE|"
    r"_CACHE_DIR|PRELOAD|PLUGIN|_FOLDER)\w*$|TORCHINDUCTOR_|TRITON_"
)
_TRUSTING = re.compile(r".*(TRUST|WEIGHTS_ONLY|INSECURE|VERIFY|TOKEN$|PROXY|ENDPOINT)")


def why_refused(name: str) -> str | None:
    """Returns why a file may not set a variable, and what to do; None if it may."""
    if name in VALUES:
        return None
    what = "is no variable of torch's, Gaudi's or this package's that a file of settings may set"
    if _CODE.match(name):
        what += ": it says where code or data are loaded from"
    elif _TRUSTING.match(name):
        what += ": it says what is trusted"
    return f"{what}. Set it where you start the program (export {name}=...), or leave it out."


def why_wrong(name: str, value: str) -> str | None:
    """Returns why a variable of `VALUES` may not have a value from a file; None if it may."""
    if name == _RELIABILITY:
        for pair in value.split(","):
            key, _, switch = (part.strip().lower() for part in pair.partition("="))
            if key == _TRUST and switch not in ("off", "false", "0"):
                return (
                    f"switches on {_TRUST}, with which loading a checkpoint may run code that is "
                    f"in it. Set it where you start the program: export {name}={_TRUST}=on"
                )
    if not re.fullmatch(VALUES[name], value):
        return f"is no value that it has. It has to match {VALUES[name]}"
    return None
