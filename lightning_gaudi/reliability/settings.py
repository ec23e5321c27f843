"""Defines the switches for what keeps a run, and reads them from argument, callback or variable."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from lightning_utilities.core.rank_zero import rank_zero_warn
from typing_extensions import ParamSpec

from lightning_gaudi._core.settings import Setting, Wording, check_name

VARIABLE = "LIGHTNING_GAUDI_RELIABILITY"

_SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


_NUMBERS = {
    "watchdog_timeout_s": (0, "time in seconds"),
    "slow_rank_factor": (1, "number"),
    "slow_rank_s": (0, "time in seconds"),
}
"""The settings that are numbers: by name, the value that it must exceed, and what it is called."""

_OPTIONAL = ("watchdog_timeout_s", "slow_rank_factor")


@dataclass(frozen=True)
class ReliabilitySettings:
    """Says what is done so that no run is lost. Each part can be switched off alone.

    Raises:
        ValueError: A field has a value of another type, or one out of range.
    """

    exact_resume: bool = True
    """Checkpoints of a Trainer hold the random states of host and device, of workers too, and the
    position in the data; a fit that resumes goes on as if it had never ended. Metrics that are
    averaged over an epoch begin anew. In Fabric, whose loops are the user's, nothing is added."""
    verify_checkpoints: bool = True
    """Checkpoints are saved with a manifest of checksums, and compared with it when loaded."""
    async_save: bool = False
    """Checkpoints are written while training goes on; an error of the writer is raised at the next
    step."""
    save_on_exit: bool = True
    """A fit that a signal ends saves its state first; after SIGTERM the exit status is 143."""
    auto_resume: bool = True
    """A fit that torchrun or SLURM has started again goes on from the newest valid checkpoint that
    it has saved itself, unless the program passes another `ckpt_path` than at the first start."""
    stop_on_nan: bool = True
    """A loss that is not finite ends the run within one log interval, and is in no checkpoint."""
    watchdog: bool = True
    """A rank that hangs or has died is named, and all ranks end."""
    watchdog_timeout_s: float | None = None
    """How long a rank may be silent; None for the timeout of the process group."""
    trust_checkpoints: bool = False
    """Whether loading a checkpoint may run code that is in it. Only for files of your own."""
    slow_rank_factor: float | None = 1.5
    """The watchdog names a rank that takes so many times as long as the others for what it does by
    itself; None names none."""
    slow_rank_s: float = 60.0
    """How many seconds a rank must have been so slow before it is named."""

    def __post_init__(self) -> None:
        """Checks the values."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _NUMBERS and not isinstance(value, bool):
                raise ValueError(f"{each.name}={value!r} is neither True nor False.")
        for name, (least, form) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > least:
                raise ValueError(f"{name}={value!r} is no {form} above {least}.")


NAMES = tuple(each.name for each in fields(ReliabilitySettings))
_FORMS = f"It is 'on' or 'off', or name=on and name=off with commas; names are {', '.join(NAMES)}."


def _all(is_on: bool) -> ReliabilitySettings:
    """Returns the defaults, or everything off; nothing that is off by default is switched on."""
    defaults = ReliabilitySettings()
    if is_on:
        return defaults
    return ReliabilitySettings(**{name: False for name in NAMES if getattr(defaults, name) is True})


def _pairs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        check_name(name, (*NAMES, "on", "off"), _FORMS)
        if name not in NAMES:
            raise ValueError(f"{pair.strip()!r} is no part of it: on and off stand alone. {_FORMS}")
        found[name] = _number(name, value) if name in _NUMBERS else _switch(name, value)
    return found


def _switch(name: str, value: str) -> bool:
    if value.lower() not in _SWITCHES:
        raise ValueError(f"{name}={value!r} is neither on nor off.")
    return _SWITCHES[value.lower()]


def _number(name: str, value: str) -> float | None:
    if name == "slow_rank_factor" and _SWITCHES.get(value.lower(), True) is False:
        return None
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is no {_NUMBERS[name][1]}.") from None


def _read(value: Any) -> ReliabilitySettings | None:
    if isinstance(value, bool):
        return _all(value)
    if not isinstance(value, str):
        return None
    whole = _SWITCHES.get(value.lower())
    return ReliabilitySettings(**_pairs(value)) if whole is None else _all(whole)


SETTING = Setting(
    ReliabilitySettings,
    VARIABLE,
    Wording(
        argument="reliability=",
        callback="Reliability",
        purpose="what to keep",
        forms="Pass 'on', 'off', name=on with commas, a mapping or ReliabilitySettings.",
    ),
    _read,
)
"""How the setting is read. Where nobody sets it, everything is on but what is off by default."""


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_by: ContextVar[str | bool | None] = ContextVar("_by", default=None)
"""The setting that makes this thread trust checkpoints.

It is empty if the strategy that loads does not trust them, None if no strategy is loading, and
False to trust none."""

_warned: set[str] = set()

_TORCHS = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""Torch's variable: its `torch.load` then trusts all files."""

ADVICE = (
    "pass reliability={'trust_checkpoints': True} to the strategy, the callback "
    f"Reliability(trust_checkpoints=True), or set {VARIABLE}=trust_checkpoints=on"
)
"""What messages tell a user to do who wants to trust a checkpoint."""


@contextmanager
def trusting(is_on: bool, weights_only: bool | None = None) -> Iterator[None]:
    """Trusts checkpoints, or does not, while the block runs.

    Args:
        is_on: The strategy's `ReliabilitySettings.trust_checkpoints`.
        weights_only: The user's argument for this checkpoint, which takes precedence.
    """
    by = {True: False, False: "weights_only=False", None: "trust_checkpoints" if is_on else ""}
    token = _by.set(by[weights_only])
    try:
        yield
    finally:
        _by.reset(token)


def as_told(load: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a strategy's method that loads: it trusts as its strategy and its caller say."""

    @functools.wraps(load)
    def loading(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        strategy: Any = args[0]
        weights_only: Any = kwargs.get("weights_only")
        with trusting(strategy.reliability.trust_checkpoints, weights_only):
            return load(*args, **kwargs)

    return loading


def trusted_by(weights_only: bool | None = None) -> str | None:
    """Warns and returns the name of the setting that trusts checkpoints here; None if none does.

    Args:
        weights_only: The user's argument for this checkpoint, which takes precedence.

    Raises:
        ValueError: The variable of the environment has a wrong value.
    """
    by = _found() if weights_only is None else "" if weights_only else "weights_only=False"
    if by and by not in _warned:
        _warned.add(by)
        rank_zero_warn(
            f"Checkpoints are trusted ({by}): code that they hold runs when they are loaded. Leave "
            "that out for files that others have made."
        )
    return by or None


def torch_trusts_all() -> bool:
    """Returns whether torch's own variable trusts all files of this program."""
    return os.environ.get(_TORCHS, "0").lower() in ("1", "y", "yes", "true")


def _found() -> str:
    by = _by.get()
    if isinstance(by, bool):
        return ""
    if by is None:
        found = SETTING.from_environment()
        by = "trust_checkpoints" if found is not None and found.trust_checkpoints else ""
    return _TORCHS if not by and torch_trusts_all() else by
