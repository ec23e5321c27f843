"""Merges the reports of several servers, and reports what is not the same on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_gaudi._core.decoding import decode
from lightning_gaudi.tools.doctor.findings import Finding, Report, error, ok, warning

_OWN = (
    *("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"),
    "LIGHTNING_GAUDI_SIMULATE_SERVER",
)
"""Variables that may differ, because each server or each rank has its own value."""
_MAX_RANKS = 2**16
_PACKAGE, _VARIABLE, _FIRMWARE = "package ", "variable ", "firmware "


@dataclass
class Process:
    """A process that a launcher has started, with what it has answered."""

    host: str
    rank: int | None
    size: int | None
    """The number of processes that the launcher has told it."""
    is_first: bool
    """Whether it is the first one of its host, and has looked at the machine."""
    report: Report

    @classmethod
    def read(cls, message: Any) -> tuple[str, Process, bool]:
        """Reads a message: its sender, the process, and whether the message has its report.

        Raises:
            ValueError: The message is not one that our processes send.
        """
        if not isinstance(message, dict) or "report" not in message:
            raise ValueError("It is no answer.")
        # The report has a decoder of its own; anybody on the network may have written the message.
        about = decode(_About, {**message, "report": ""}, "an answer")
        if not 0 <= (about.rank or 0) < _MAX_RANKS or not 0 <= (about.size or 0) <= _MAX_RANKS:
            raise ValueError("Its rank or their number is none.")
        said = message["report"]
        report = Report([]) if said is None else Report.from_json(said)
        found = cls(about.host, about.rank, about.size, about.is_first, report)
        return about.sender, found, said is not None

    def __str__(self) -> str:
        return self.host if self.rank is None else f"rank {self.rank} on {self.host}"


@dataclass
class _About:
    """What a process sends with its report."""

    sender: str
    host: str
    rank: int | None
    size: int | None
    is_first: bool
    report: str


def merge(processes: Sequence[Process]) -> Report:
    """Returns one report of all processes that have answered."""
    hosts = list(dict.fromkeys(process.host for process in processes))
    findings: dict[Finding, list[str]] = {}
    for process in processes:
        for finding in process.report.findings:
            where = findings.setdefault(finding, [])
            where += [] if process.host in where else [process.host]
    found = [
        finding if where == hosts else replace(finding, where=tuple(where))
        for finding, where in findings.items()
    ]
    different, common = compare(processes), _common(processes)
    if not different and len(processes) > 1:
        who = f"{len(processes)} processes on {', '.join(hosts)}"
        found.append(ok("hosts", f"{who} have the same {len(common)} versions and settings"))
    return Report([*different, *found], common)


def compare(processes: Sequence[Process]) -> list[Finding]:
    """Reports each fact that is not the same in all processes, and who has which value."""
    found = []
    for name in dict.fromkeys(name for process in processes for name in process.report.facts):
        having: dict[str | None, list[Process]] = {}
        for process in processes:
            having.setdefault(process.report.facts.get(name), []).append(process)
        if len(having) > 1 and name.removeprefix(_VARIABLE) not in _OWN:
            found.append(_difference(name, _who(having)))
    return found


def _who(having: Mapping[str | None, Sequence[Process]]) -> dict[str | None, list[str]]:
    """Returns who has each value: hosts, or ranks where the ranks of a host differ."""
    hosts = {value: {process.host for process in each} for value, each in having.items()}
    found: dict[str | None, list[str]] = {}
    for value, processes in having.items():
        others = set().union(*(each for key, each in hosts.items() if key != value))
        names = (str(each) if each.host in others else each.host for each in processes)
        found[value] = list(dict.fromkeys(names))
    return found


def _difference(name: str, hosts: Mapping[str | None, Sequence[str]]) -> Finding:
    is_variable = name.startswith(_VARIABLE)
    lacking = "not set" if is_variable else "none"
    # Those that lack it come last.
    parts = sorted(hosts.items(), key=lambda each: each[0] is None)
    where = "; ".join(f"{value or lacking} on {', '.join(each)}" for value, each in parts)
    short = name.removeprefix(_VARIABLE).removeprefix(_PACKAGE)
    if is_variable:
        # A variable that reaches only some of the servers makes the first collective fail.
        level = error if None in hosts else warning
        fix = (
            f"Have the launcher hand {short} on (mpirun -x {short}; srun --export=ALL), or set it "
            "on all servers."
        )
        return level("hosts", f"{short} differs: {where}", fix)
    level = warning if name == "cards" or name.startswith(_FIRMWARE) else error
    return level(
        "hosts", f"{short} differs: {where}", "Use one image and one driver on all servers."
    )


def _common(processes: Sequence[Process]) -> dict[str, str]:
    """Returns the facts that are the same in all processes."""
    first, *others = (process.report.facts for process in processes)
    return {
        name: value
        for name, value in first.items()
        if all(facts.get(name) == value for facts in others)
    }
