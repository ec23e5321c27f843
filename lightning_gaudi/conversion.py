"""The user's choice of strategy in its form for the HPU, for the Trainer and for Fabric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._patches.class_swap import reparent

from .distributed import DEVICE

NAMES = (
    "'auto', 'hpu_ddp', 'hpu_deepspeed', 'hpu_fsdp', 'hpu_single', or one of Lightning's names "
    "that begin with 'ddp', 'deepspeed' or 'fsdp'"
)
"""What may be passed as strategy, for messages."""


class Forms(NamedTuple):
    """The strategies of Lightning's Trainer, or of its Fabric, and ours that extend them."""

    registry: Any
    """Lightning's, of strategies by name."""
    lightning: str
    """Lightning's package that holds them."""
    base: type[Any]
    """What all of ours are."""
    single: type[Any]
    """Ours for one card."""
    ddp: type[Any]
    """Ours for several."""
    of: Mapping[type[Any], type[Any]]
    """Each of Lightning's that has a form, and the form: all of ours."""
    precisions: Mapping[type[Any], type[Any]]
    """The same for precision plugins that belong to a strategy."""


def to_hpu_strategy(strategy: Any, forms: Forms) -> Any:
    """The HPU's form of what was passed as `strategy`.

    Args:
        strategy: A registered name, or an instance; an instance stays the user's object, and keeps
            its arguments and plugins.
        forms: Those of the Trainer or of Fabric.

    Raises:
        MisconfigurationException: It has no such form, or arguments that an HPU cannot honour.
    """
    typed = _typed(strategy)
    # By name: some of Lightning's ask for their library as soon as they are made.
    kind = forms.registry[strategy]["strategy"] if isinstance(strategy, str) else type(strategy)
    base = _lightning_base(kind, forms)
    if not issubclass(kind, forms.base) and (base not in forms.of or not _is_movable(strategy)):
        home = forms.ddp.__module__.partition(".strategies")[0]
        raise MisconfigurationException(
            f"strategy={typed} does not train on accelerator='hpu' in this version. Pass {NAMES}, "
            f"or derive your strategy from {home}.{forms.ddp.__name__} or {forms.single.__name__}."
        )
    ours = kind if issubclass(kind, forms.base) else forms.of[base]
    ours.check_installed()
    if isinstance(strategy, str):
        strategy = forms.registry.get(strategy)
    found = reparent(strategy, base, ours)
    found.become_hpu(typed)
    return found


def to_hpu_device(device: Any) -> torch.device:
    """The device of a strategy for one card, with its index, as its tensors have it.

    Raises:
        ValueError: It is not the HPU of this process.
    """
    found = torch.device("hpu", device) if isinstance(device, int) else torch.device(device)
    if found.type != "hpu" or found.index not in (None, 0):
        raise ValueError(
            f"SingleHPUStrategy(device={device!r}) is not the HPU of this process. Pass 'hpu': a "
            "process drives one card, with the index 0."
        )
    return DEVICE


def _lightning_base(kind: type[Any], forms: Forms) -> type[Any]:
    """The class of Lightning's that `kind` is or extends."""
    return next(base for base in kind.__mro__ if base.__module__.startswith(forms.lightning))


def _is_movable(strategy: Any) -> bool:
    """Whether it is on no other device than the HPU, or on the CPU by default."""
    device: torch.device | None = getattr(strategy, "_root_device", None)
    return device is None or device.type in ("cpu", "hpu")


def _typed(strategy: Any) -> str:
    if isinstance(strategy, str):
        return repr(strategy)
    device = getattr(strategy, "_root_device", None)
    return f"{type(strategy).__name__}({'' if device is None else f'device={str(device)!r}'})"


def check_start_method(start_method: str, typed: str) -> None:
    """Refuse to fork: a card does not survive it.

    Args:
        start_method: `"popen"`, `"spawn"`, `"fork"` or `"forkserver"`.
        typed: The strategy as the user typed it.

    Raises:
        MisconfigurationException: It forks.
    """
    if start_method in ("fork", "forkserver"):
        raise MisconfigurationException(
            f"strategy={typed} starts its processes with {start_method!r}, which the driver of an "
            "HPU does not survive. In a script pass strategy='ddp' or 'ddp_spawn'; in a notebook "
            "train on one card (devices=1), or start a script from it."
        )


def refuse_interactive(strategy: Any, num_devices: int) -> None:
    """Refuse several cards in a notebook or a Python shell: processes could only be forked there.

    Args:
        strategy: As the user typed it, or the one that `"auto"` gave.
        num_devices: How many cards it is for.

    Raises:
        MisconfigurationException: Always.
    """
    typed = f"strategy={strategy!r} and " if isinstance(strategy, str) else ""
    raise MisconfigurationException(
        f"{typed}devices={num_devices} need a process for each card, which an interactive session "
        "(a notebook, a Python shell, `python -i`) cannot start: it would fork, which the driver "
        "of an HPU does not survive. Pass devices=1, or run the program as a script."
    )
