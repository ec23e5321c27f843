"""Holds all rules of the card's, and gives the simulated device those that apply to it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType

from lightning_gaudi._version import name_page
from lightning_gaudi.measured_card import MeasuredCard
from lightning_gaudi.simulator.rules import (
    rows_collectives,
    rows_differences,
    rows_fallbacks,
    rows_fallbacks_by_argument,
    rows_graphs,
    rows_kernels,
    rows_processes,
    rows_shapes,
    rows_types,
)
from lightning_gaudi.simulator.rules.report import is_reported, report
from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.simulator.settings import (
    EXEMPT,
    Settings,
    SimulatorError,
    is_switched_on,
)

_PAGE = name_page("What a Gaudi does otherwise", "reference/rules")

RULES: tuple[Rule, ...] = (
    *rows_types.ROWS,
    *rows_shapes.ROWS,
    *rows_fallbacks.ROWS,
    *rows_fallbacks_by_argument.ROWS,
    *rows_kernels.ROWS,
    *rows_collectives.ROWS,
    *rows_graphs.ROWS,
    *rows_processes.ROWS,
    *rows_differences.ROWS,
)
"""Every row, in the order of the documentation."""

_of_kernels: dict[str, list[Rule]] = {}
"""The rules of the vendor's own operators that apply to this card, by the operator's name."""

_called: set[str] = set()
"""The vendor's own operators that this process has called."""

_BY_KEY = {rule.key: rule for rule in RULES}

# The order is that of the enum in csrc/rules/rules.h, which goes on with _NO_FALLBACK, _NO_WAIT.
_VERDICTS = (
    Verdict.REFUSED,
    Verdict.DEMOTED,
    Verdict.ON_CPU,
    Verdict.DYNAMIC,
    Verdict.WAITS,
)
_NO_FALLBACK, _NO_WAIT = len(_VERDICTS), len(_VERDICTS) + 1
_BY_FOUND = {"refused": Verdict.REFUSED, "on_cpu": Verdict.ON_CPU, "waits": Verdict.WAITS}
"""By what a probe has found of a rule, what the card does then."""

_of_device: dict[int, Rule] = {}
"""By its place in the table, a rule as the device does it."""

_applying: set[str] = set()
"""The keys of the rules that apply to this process's card and mode."""

# The values of `when` that hold only while a card keeps int64 as int32.
_OF_NARROW_INTEGERS = (
    *("beyond_int32", "from_host_beyond_int32"),
    "narrow_integers_to_host_non_blocking",
)


def find(key: str) -> Rule:
    """Returns the rule with that key.

    Raises:
        KeyError: There is no such rule.
    """
    return _BY_KEY[key]


def check_exempt(names: Iterable[str]) -> None:
    """Checks that each name that is to be exempt is a rule's key, or can be a module's name.

    Raises:
        SimulatorError: A name is neither.
    """
    for name in names:
        if name in _BY_KEY or name.replace(".", "_").isidentifier():
            continue
        close = difflib.get_close_matches(name, _BY_KEY, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SimulatorError(
            f"{EXEMPT} names {name!r}, which is neither a rule of the card's nor a module.{hint} "
            f"The rules are listed in {_PAGE}, and each finding ends with the key of its rule."
        )


def install(device: ModuleType, settings: Settings, measured: MeasuredCard | None = None) -> None:
    """Gives the device the rules that operators can meet, before any operator runs.

    Args:
        device: The simulated one.
        settings: Which card it is.
        measured: What was measured of such a card, which goes before the table.
    """
    device.clear_rules()
    _of_kernels.clear()
    _applying.clear()
    _of_device.clear()
    for number, rule in enumerate(RULES):
        if not _applies(rule, settings):
            continue
        modes = (rule.mode or "eager", "lazy")
        found = measured.found(rule.key, modes) if measured is not None else None
        if found is None or is_as_said(rule, found):
            _applying.add(rule.key)
            _of_device[number] = rule
        else:
            _of_device[number] = _as_measured(rule, found)
        # The stand-in registers the vendor's own operators ("hpu::...") in Python, and they report
        # by `report_kernel`: the device never sees them.
        if rule in rows_kernels.ROWS:
            if found is not None and not is_as_said(rule, found):
                continue
            for operator in rule.operators:
                _of_kernels.setdefault(operator, []).append(rule)
        elif rule.verdict in _VERDICTS:
            _add(device, number, rule, _verdict(rule, found))
    device.report_rules_to(_report_met)
    device.set_rules_reported(is_reported())


def report_kernel(operator: str, arguments: Iterable[object]) -> None:
    """Reports the rules that a call of one of the vendor's own operators meets.

    Args:
        operator: Its name, as "hpu::sdpa_fwd".
        arguments: What it is called with.

    Raises:
        GaudiRuleError: A card refuses it, or the rules are to raise.
    """
    _called.add(operator)
    rules = _of_kernels.get(operator)
    if not rules:
        return
    names = [str(each.dtype).removeprefix("torch.") for each in arguments if hasattr(each, "dtype")]
    for rule in rules:
        met = next((name for name in names if name in rule.dtypes), "")
        if met or not rule.dtypes:
            report(rule, operator, f"got {met}" if met else "")


def called_kernels() -> frozenset[str]:
    """Returns the vendor's operators that this process, or the one that forked it, has called."""
    return frozenset(_called)


def _report_met(number: int, operator: str, detail: str) -> None:
    report(_of_device.get(number, RULES[number]), operator, detail)


def applying() -> frozenset[str]:
    """Returns the keys of the rules that apply to this process's card, in either mode."""
    return frozenset(_applying)


def is_as_said(rule: Rule, found: str) -> bool:
    """Returns whether what a probe has found is what the table says."""
    if rule.verdict is Verdict.DYNAMIC:
        return found == "waits"
    return found in (rule.verdict.value, "as_said")


def _as_measured(rule: Rule, found: str) -> Rule:
    """Returns a rule that says what was measured in its place."""
    said = {"refused": "raises here", "on_cpu": "computes this on the CPU", "waits": "waits here"}
    if found not in said:
        return rule
    what = f"{said[found]}, as was measured on one (the table: a Gaudi {rule.what})"
    return replace(rule, verdict=_BY_FOUND[found], what=what)


def _verdict(rule: Rule, found: str | None) -> int | None:
    """Returns what the device does of a rule, as its enum counts; None for nothing."""
    if found is None or is_as_said(rule, found):
        return _VERDICTS.index(rule.verdict)
    if found == "none" or found not in _BY_FOUND:
        of_waiting = rule.verdict in (Verdict.DYNAMIC, Verdict.WAITS)
        is_on_cpu = rule.verdict is Verdict.ON_CPU
        return _NO_WAIT if of_waiting else _NO_FALLBACK if is_on_cpu else None
    return _VERDICTS.index(_BY_FOUND[found])


def _add(device: ModuleType, number: int, rule: Rule, verdict: int | None) -> None:
    import torch

    for operator in rule.operators if verdict is not None else ():
        device.add_rule(
            operator,
            number,
            verdict,
            [getattr(torch, name) for name in rule.dtypes],
            rule.mode != "eager",
            rule.mode != "lazy",
            rule.when or "",
        )


def _applies(rule: Rule, settings: Settings) -> bool:
    if rule.when in _OF_NARROW_INTEGERS and _has_int64():
        return False
    return (not rule.cards or settings.card.key in rule.cards) and (
        not rule.releases or settings.release.key in rule.releases
    )


def _has_int64() -> bool:
    """Returns whether the environment asks a card to keep int64 as it is."""
    return is_switched_on(os.environ.get("PT_ENABLE_INT64_SUPPORT", ""))
