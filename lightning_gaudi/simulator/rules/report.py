"""Reports that a program met a rule of the card's: which one, and at which line of the user's.

`LIGHTNING_GAUDI_SIMULATE_RULES` decides how: "warn" (the default) warns once a place, "error"
raises, and "off" reports nothing. `LIGHTNING_GAUDI_SIMULATE_RULES_EXEMPT` names the rules and
modules that are never reported.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lightning_gaudi.simulator import observer
from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.simulator.settings import RULE_MODES

_LIBRARIES = frozenset(sys.stdlib_module_names) | {
    *("torch", "functorch", "torchmetrics", "torchdata", "torchvision", "numpy", "safetensors"),
    *("lightning", "lightning_fabric", "pytorch_lightning", "lightning_utilities", "jsonargparse"),
    *("transformers", "diffusers", "accelerate", "peft", "datasets", "evaluate", "deepspeed"),
    *("habana_frameworks", "lightning_gaudi", "_hpu_sim", "pytest", "_pytest", "pluggy", "xdist"),
    "",
}
"""Packages whose lines are not the user's to change; "" is code that torch writes as it runs."""


class GaudiRuleWarning(UserWarning):
    """The warning that a Gaudi would refuse, slow down, or compute otherwise, what a line does."""


class GaudiRuleError(RuntimeError):
    """The error in place of the warning where the rules are to raise, or a card refuses."""


@dataclass
class Finding:
    """A place in the user's code that met a rule."""

    rule: str
    """The rule's key."""
    operator: str
    """What the line did first, as "aten::nonzero"; empty where it was no operator."""
    detail: str
    """What else is known: a type, a shape, a value."""
    file: str
    """The user's file."""
    line: int
    """The line in it."""
    message: str
    """All of it as a sentence, without file and line."""
    count: int = 1
    """How often the line met the rule."""


_findings: dict[tuple[str, str, int], Finding] = {}
_state = {"mode": "warn"}
_exempt: set[str] = set()


def set_mode(mode: str) -> None:
    """Changes how findings are reported from now on.

    Args:
        mode: "warn", "error" or "off".

    Raises:
        ValueError: It is none of these.
    """
    if mode not in RULE_MODES:
        raise ValueError(
            f"There is no mode {mode!r} of rules. Pass one of {', '.join(RULE_MODES)}."
        )
    _state["mode"] = mode
    if (device := sys.modules.get("_hpu_sim")) is not None:
        device.set_rules_reported(is_reported())


def exempt(names: Iterable[str]) -> None:
    """Exempts some rules, and what some modules do, from reports from now on, and no others.

    What a card refuses is reported all the same.

    Args:
        names: Keys of rules, and names of modules or packages, of a library or of the program's
            own. A module counts if it stands on the stack between an operator and the user's line.
    """
    _exempt.clear()
    _exempt.update(names)


def is_reported() -> bool:
    """Returns whether findings are told to anyone."""
    return _state["mode"] != "off"


def findings() -> list[Finding]:
    """Returns what this process has met so far, in the order in which it was met first."""
    return list(_findings.values())


def forget_findings() -> None:
    """Forgets all findings, so that their places are reported again."""
    _findings.clear()


def report(rule: Rule, operator: str = "", detail: str = "") -> None:
    """Tells the user that the line that is running met a rule.

    Args:
        rule: The rule.
        operator: The operator that met it, as "aten::nonzero"; empty if none did.
        detail: What else there is to say, as a clause: "got float64".

    Warns:
        GaudiRuleWarning: Once a rule and line, if the rules are to warn; on rank zero.

    Raises:
        GaudiRuleError: The rules are to raise, or a card refuses.
    """
    mode = _state["mode"]
    if mode == "off":
        return
    if (place := place_of_user()) is None:
        return
    # This walks the stack once more, so it comes after the cheaper reasons to report nothing.
    if _is_exempt(rule):
        return
    observer.tell("rule", rule.key, 1, " with ".join(filter(None, (operator, detail))))
    file, line = place
    if (known := _findings.get((rule.key, file, line))) is not None:
        known.count += 1
        return
    message = _sentence(rule, operator, detail)
    if mode == "error" or rule.verdict is Verdict.REFUSED:
        raise GaudiRuleError(f"{short_name(file)}:{line}: {message}")
    _findings[rule.key, file, line] = Finding(rule.key, operator, detail, file, line, message)
    # The observer has the finding already; an audit shows it in its report and not among the
    # output.
    if observer.is_observed():
        return
    if (os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0") == "0":
        # An empty registry: Python remembers in the module's registry what it has warned of, and a
        # line that is met again after `forget_findings` is to be reported again.
        warnings.warn_explicit(message, GaudiRuleWarning, file, line, registry={})


def _is_exempt(rule: Rule) -> bool:
    if not _exempt or rule.verdict is Verdict.REFUSED:
        return False
    if rule.key in _exempt:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if any(name == each or name.startswith(f"{each}.") for each in _exempt):
            return True
        if not is_library(name):
            return False
        frame = frame.f_back
    return False


def _sentence(rule: Rule, operator: str, detail: str) -> str:
    met = " with ".join(part for part in (operator, detail) if part)
    return f"{met + ': ' if met else ''}a Gaudi {rule.what}. {rule.instead} [{rule.key}]"


def short_name(file: str) -> str:
    """Returns the file as the user would name it from where the program runs."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def place_of_user() -> tuple[str, int] | None:
    """Returns file and line of the innermost frame that is the user's; None in a tensor's `repr`.

    Where all that runs is installed, as the user's own package may be, they are those of the
    innermost frame that is of no package we know, or else of the outermost frame.
    """
    frame: FrameType | None = sys._getframe(1)
    outermost, unknown = frame, None
    while frame is not None:
        # Printing a tensor waits and selects by masks, but nobody trains with it.
        if frame.f_globals.get("__name__") == "torch._tensor_str":
            return None
        if not is_library(str(frame.f_globals.get("__name__", ""))):
            place = frame.f_code.co_filename, frame.f_lineno
            if not is_installed(place[0]):
                return place
            unknown = unknown or place
        outermost, frame = frame, frame.f_back
    assert outermost is not None
    return unknown or (outermost.f_code.co_filename, outermost.f_lineno)


def is_installed(file: str) -> bool:
    """Returns whether a file of Python lies where packages are installed."""
    return "/site-packages/" in file or "/dist-packages/" in file


def is_library(module: str) -> bool:
    """Returns whether a module is of a package whose lines are not the user's to change."""
    return module.partition(".")[0] in _LIBRARIES
