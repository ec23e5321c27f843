"""The switches for what keeps a run, and who sets them: argument, callback, environment, nobody."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lightning_gaudi._core.settings import Setting, Wording, check_name

VARIABLE = "LIGHTNING_GAUDI_RELIABILITY"

_SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True)
class ReliabilitySettings:
    """What is done so that no run is lost. Each part can be switched off alone.

    Raises:
        ValueError: A value is none of those below.
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

    def __post_init__(self) -> None:
        """Checks the values."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "watchdog_timeout_s" and not isinstance(value, bool):
                raise ValueError(f"{each.name}={value!r} is neither True nor False.")
        seconds = self.watchdog_timeout_s
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0
        ):
            raise ValueError(f"watchdog_timeout_s={seconds!r} is no time in seconds above 0.")


NAMES = tuple(each.name for each in fields(ReliabilitySettings))
_FORMS = f"It is 'on' or 'off', or name=on and name=off with commas; names are {', '.join(NAMES)}."


def _all(is_on: bool) -> ReliabilitySettings:
    """Everything by default, or nothing; what is off by default stays off."""
    defaults = ReliabilitySettings()
    if is_on:
        return defaults
    return ReliabilitySettings(**{name: False for name in NAMES if getattr(defaults, name) is True})


def _pairs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        check_name(name, (*NAMES, "on", "off"), _FORMS)
        found[name] = _number(value) if name == "watchdog_timeout_s" else _switch(name, value)
    return found


def _switch(name: str, value: str) -> bool:
    if value.lower() not in _SWITCHES:
        raise ValueError(f"{name}={value!r} is neither on nor off.")
    return _SWITCHES[value.lower()]


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"watchdog_timeout_s={value!r} is no time in seconds.") from None


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
"""Who may say what keeps a run; all of it, but what is off by default, where nobody does."""
