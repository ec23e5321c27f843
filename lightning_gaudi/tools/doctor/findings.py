"""Defines findings and reports, and shows them as a table to read and paste, or as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from lightning_gaudi._core.decoding import decode
from lightning_gaudi.untrusted import hide_secrets, printable

_WIDTH = 100
_MAX_CHARS = 1_000_000


class Level(str, Enum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    """A run fails, or is silently wrong."""
    WARNING = "warning"
    """A run may fail, or is slower than it could be."""
    NOTE = "note"
    """Nothing is wrong, but it is good to know."""
    OK = "ok"


_ORDER = list(Level)


@dataclass(frozen=True)
class Finding:
    """What one check says of one thing."""

    level: Level
    area: str
    """What was looked at, in a word or two."""
    found: str
    fix: str = ""
    """What to do. An error or a warning always has one."""
    where: tuple[str, ...] = ()
    """The hosts on which it was found, if not on all of several."""

    def __post_init__(self) -> None:
        """Hides secrets, because users send reports to others."""
        for name in ("found", "fix"):
            object.__setattr__(self, name, hide_secrets(getattr(self, name)))


@dataclass
class Report:
    """What was found on a machine."""

    findings: list[Finding]
    facts: dict[str, str] = field(default_factory=dict)
    """What must be the same on all servers: versions and settings, by name."""

    @property
    def status(self) -> int:
        """The exit status: 1 if there is an error."""
        return int(any(each.level is Level.ERROR for each in self.findings))

    def as_json(self) -> dict[str, Any]:
        """Returns the report in types that JSON knows, the worst findings first."""
        findings = [
            {key: value for key, value in asdict(each).items() if value}
            | {"level": each.level.value}
            for each in worst_first(self.findings)
        ]
        facts = {name: hide_secrets(value) for name, value in self.facts.items()}
        return {"status": self.status, "findings": findings, "facts": facts}

    @classmethod
    def from_json(cls, data: Any) -> Report:
        """Returns the report of which `as_json`, perhaps in another process, gave the data.

        Raises:
            ValueError: The data are something else.
        """
        findings = data.get("findings") if isinstance(data, dict) else None
        if not isinstance(findings, list) or not all(isinstance(each, dict) for each in findings):
            raise ValueError("It is no report.")
        whole = [{"fix": "", "where": [], **each} for each in findings]
        return cls(
            [decode(Finding, each, "a finding") for each in whole],
            decode(dict[str, str], data.get("facts"), "facts"),
        )


def error(area: str, found: str, fix: str) -> Finding:
    """Makes a finding that a run fails, or is silently wrong."""
    return Finding(Level.ERROR, area, found, fix)


def warning(area: str, found: str, fix: str) -> Finding:
    """Makes a finding that a run may fail, or is slower than it could be."""
    return Finding(Level.WARNING, area, found, fix)


def note(area: str, found: str, fix: str = "") -> Finding:
    """Makes a finding that is good to know, though nothing is wrong."""
    return Finding(Level.NOTE, area, found, fix)


def ok(area: str, found: str) -> Finding:
    """Makes a finding that all is well."""
    return Finding(Level.OK, area, found)


def from_message(level: Level, area: str, message: str) -> Finding:
    """Makes a finding of an error's message: what is wrong, in a sentence, and then what to do."""
    found, _, fix = message.partition(". ")
    return Finding(level, area, found.removesuffix("."), fix)


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Sorts findings by their levels; those of a level keep their order."""
    return sorted(findings, key=lambda each: _ORDER.index(each.level))


def table(report: Report) -> str:
    """Returns the report as plain text: findings, their numbers by level, and the variables."""
    rows = worst_first(report.findings)
    width = max((len(each.area) for each in rows), default=0)
    lines = [line for each in rows for line in _row(each, width)]
    text = "\n".join([*lines, "", _counts(rows), *_settings(report.facts)])
    return printable(text, max_chars=_MAX_CHARS, lines=True)


def _settings(facts: Mapping[str, str]) -> list[str]:
    """Returns lines with the variables that are set."""
    prefix = "variable "
    found = {name.removeprefix(prefix): facts[name] for name in facts if name.startswith(prefix)}
    return (
        ["", *(f"{name}={printable(hide_secrets(value))}" for name, value in found.items())]
        if found
        else []
    )


def _row(finding: Finding, width: int) -> list[str]:
    start = f"{finding.level.value:<8} {finding.area:<{width}}  "
    where = f" ({', '.join(finding.where)})" if finding.where else ""
    lines = _wrap(f"{finding.found}{where}", start, " " * len(start))
    if finding.fix:
        indent = " " * len(start)
        lines += _wrap(finding.fix, f"{indent}-> ", f"{indent}   ")
    return lines


def _wrap(text: str, first: str, following: str) -> list[str]:
    # Lines are broken at spaces alone, so that commands and paths can be copied from the table.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counts(findings: Sequence[Finding]) -> str:
    count = Counter(each.level for each in findings)
    words = [
        f"{count[level]} {level.value}{'' if count[level] == 1 else 's'}" for level in _ORDER[:-1]
    ]
    return f"{', '.join(words)}; {count[Level.OK]} ok"
