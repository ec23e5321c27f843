"""Runs the parts in their order, and gathers their rows for the file and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from lightning_gaudi import measured_card
from lightning_gaudi._core import vendor
from lightning_gaudi._version import __version__
from lightning_gaudi.hardware import find_gaudi
from lightning_gaudi.releases import find_release, minor
from lightning_gaudi.simulator import settings
from lightning_gaudi.tools.doctor import Machine, diagnose, software
from lightning_gaudi.tools.verify import faults
from lightning_gaudi.tools.verify.process import Worker, WorkerError

PARTS = (
    *("rules", "memory", "launches", "compile", "matmuls", "operators", "copies"),
    *("collectives", "steps", "faults"),
)
"""The parts of a verification, in their order."""
_IN_BOTH_MODES = ("launches", "compile", "steps")
_NUM_CARDS = (2, 4, 8)
_MAX_RESTARTS = 12
_PATIENCE_S = 120.0
_SETTLED_S = 2.0
"""How long to wait after a program was killed until its card is acquired again."""
_HANG_S = 60.0
"""After this time, a program that should end counts as hung."""
_FREE_S = 15.0
"""How long a card may take to become free again."""
_BUSY = ("acquire", "synstatus=8", "synstatus 8", "busy", "in use", "taken")
"""Words in the messages of a driver whose card is in use."""


class VerifyError(RuntimeError):
    """Says why nothing can be measured, and what to do."""


@dataclass(frozen=True)
class Options:
    """What to measure."""

    parts: Sequence[str] = PARTS
    is_quick: bool = False
    """Whether to measure only a few sizes."""
    patience_s: float = _PATIENCE_S
    """How long a part may say nothing until it is ended."""


@dataclass
class Verification:
    """The content of the file: what was measured."""

    identity: dict[str, Any] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lost: list[dict[str, str]] = field(default_factory=list)
    """What could not be measured: the part, what of it, and how it failed."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns the content as JSON values."""
        return {
            "kind": measured_card.KIND,
            "schema": measured_card.SCHEMA,
            **self.identity,
            "seconds": round(self.seconds, 1),
            "rules": self.rules,
            "memory": self.memory,
            "faults": self.faults,
            "figures": self.figures,
            "lost": self.lost,
        }


def verify(
    options: Options,
    tell: Callable[[str], None] = lambda text: None,
    keep: Callable[[Verification], None] = lambda found: None,
) -> Verification:
    """Measures this machine's card.

    Args:
        options: What to measure.
        tell: Is called with a few words on what is done next.
        keep: Is called after each part with all that was measured, so that a run that is killed
            loses one part at most.

    Raises:
        VerifyError: There is no card, or another program has it.
    """
    started = time.monotonic()
    found = Verification()
    with ExitStack() as stack:
        run = _Run(options, found, tell)
        for worker in run.workers.values():
            stack.enter_context(closing(worker))
        run.identify()
        for part in PARTS:
            if part in options.parts:
                run.measure(part)
                found.identity["parts"].append(part)
                found.seconds = time.monotonic() - started
                keep(found)
    return found


class _Run:
    """One run: its processes, and the results so far."""

    def __init__(self, options: Options, found: Verification, tell: Callable[[str], None]) -> None:
        self.workers = {mode: Worker(mode) for mode in measured_card.MODES}
        self._options = options
        self._found = found
        self._tell = tell
        self._machine = Machine()
        self._is_simulated = settings.is_requested()
        self._modes: list[str] = []
        self._num_cards = 1

    def identify(self) -> None:
        """Finds out which card this is, and in which modes it can be used.

        Raises:
            VerifyError: There is no card, or another program has it.
        """
        if not self._is_simulated and not vendor.is_installed():
            raise VerifyError(
                f"no Gaudi here: {vendor.unavailable_reason()}. Run this in the environment or the "
                "container of a Gaudi server, or try it on simulated cards: lightning-gaudi "
                "simulate --cards 2 -- lightning-gaudi verify"
            )
        for worker in self.workers.values():
            worker.start()
        self._tell("looking at the machine")
        report = diagnose()
        card: dict[str, Any] = {}
        for mode in measured_card.MODES:
            self._tell(f"taking a card in {mode} mode")
            present, problem = self._presence(mode)
            if present is not None and present["is_lazy"] == (mode == "lazy"):
                self._modes.append(mode)
                card = card or present
            else:
                self._lose("identity", f"{mode} mode", problem or "the card is in the other mode")
        if not self._modes:
            raise VerifyError(_why_no_card([lost["how"] for lost in self._found.lost]))
        self._num_cards = card["num_cards"]
        self._found.identity = self._identity(card) | {"doctor": report.as_json()}

    def _presence(self, mode: str) -> tuple[dict[str, Any] | None, str]:
        """Returns what a process that acquires a card reports of it, or why it gets none."""
        worker = self.workers[mode]
        try:
            rows = list(worker.run("presence", {}, limit_s=self._options.patience_s))
        except WorkerError as error:
            return None, str(error)
        return (rows[0] if rows and not worker.outcome.problem else None), worker.outcome.problem

    def _identity(self, card: dict[str, Any]) -> dict[str, Any]:
        release = software.gaudi_software(self._machine) or "unknown"
        if self._is_simulated:
            release = settings.read_release().software
        known = find_release(release)
        if known is None:
            self._lose(
                "identity",
                f"release {release}",
                "is not known here: rules of certain releases are left out",
            )
        generation = find_gaudi(card["device_name"])
        if generation is None:
            self._lose("identity", card["device_name"], "is a card that is not known here")
        versions = {name: self._machine.version(name) for name in software.PACKAGES}
        return {
            "lightning_gaudi": __version__,
            "date": today(),
            "card": generation.key if generation else card["device_name"].lower(),
            "device_name": card["device_name"],
            "num_cards": card["num_cards"],
            "release": release,
            "is_simulated": self._is_simulated,
            "is_quick": self._options.is_quick,
            "modes": self._modes,
            "parts": [],  # filled as parts are measured
            "versions": {name: version for name, version in versions.items() if version},
        }

    def measure(self, part: str) -> None:
        """Measures a part; if its process does not start, the part is noted as lost."""
        try:
            getattr(self, f"_measure_{part}", lambda: self._measure_figures(part))()
        except WorkerError as error:
            self._lose(part, "all of it", str(error))

    def _measure_rules(self) -> None:
        from lightning_gaudi.tools.verify import expectations

        identity = self._found.identity
        for mode in self._modes:
            for num_ranks in (1, 2):
                if num_ranks > self._num_cards:
                    continue
                keys = expectations.keys_of(
                    identity["card"],
                    minor(identity["release"]),
                    mode,
                    num_ranks,
                    is_simulated=self._is_simulated,
                )
                self._probe(keys, mode, num_ranks)

    def _probe(self, keys: Sequence[str], mode: str, num_ranks: int) -> None:
        """Runs probes; if one ends its process, another process runs those after it."""
        from lightning_gaudi.tools.verify import expectations

        identity = self._found.identity
        before = expectations.measured_before(identity["card"], identity["release"])
        left, worker = [*keys], self.workers[mode]
        for _ in range(_MAX_RESTARTS):
            if not left:
                return
            cards = f", {num_ranks} cards" if num_ranks > 1 else ""
            self._tell(f"rules in {mode} mode{cards}: {len(left)} to go")
            at = ""
            readings: dict[str, list[dict[str, Any]]] = {}
            options = {"keys": left}
            limit_s = self._options.patience_s
            for row in worker.run("rules", options, num_ranks=num_ranks, limit_s=limit_s):
                at = row.get("begun") or at
                if "found" in row:
                    readings.setdefault(row["key"], []).append(row)
            # A probe has a result once all ranks have one.
            whole = {key: rows for key, rows in readings.items() if len(rows) == num_ranks}
            for key, rows in whole.items():
                self._keep(expectations.merged(key, mode, rows, before))
            left = [key for key in left if key not in whole]
            if not worker.outcome.problem:
                continue
            # The probe that was begun last has ended the process; without a message of it, the
            # first one is blamed, so that the loop makes progress.
            lost = at if at in left else next(iter(left), "")
            self._lose("rules", f"{lost} ({mode})", worker.outcome.problem)
            left = [key for key in left if key != lost]
        for key in left:
            self._lose("rules", f"{key} ({mode})", "not tried: too many others ended the process")

    def _keep(self, row: dict[str, Any]) -> None:
        if row["found"] in measured_card.FOUND:
            self._found.rules.append(row)
        else:
            self._lose("rules", f"{row['key']} ({row['mode']})", row["detail"])

    def _measure_memory(self) -> None:
        for row in self._told("memory", self._modes[0]):
            if "alignment_bytes" in row:
                self._found.memory = {k: v for k, v in row.items() if k not in ("is", "rank")}
            else:
                self._add(row)

    def _measure_figures(self, part: str) -> None:
        modes = self._modes if part in _IN_BOTH_MODES else self._modes[:1]
        if part == "steps" and self._options.is_quick:
            modes = modes[-1:]  # lazy, if it can be used, as public runs were
        for mode in modes:
            for row in self._told(part, mode):
                self._add(row)

    def _measure_collectives(self) -> None:
        if self._num_cards < 2:
            self._lose("collectives", "all of them", "need two cards")
        for num_ranks in _NUM_CARDS:
            if num_ranks <= self._num_cards:
                for row in self._told("collectives", self._modes[0], num_ranks):
                    self._add(row)

    def _measure_faults(self) -> None:
        if self._num_cards < 2:
            self._lose("faults", "one of two ranks raises", "needs two cards")
        from lightning_gaudi.tools.verify import expectations

        identity = self._found.identity
        limit_s = min(_HANG_S, self._options.patience_s)
        for row in faults.measure(
            self._num_cards,
            self._modes[0],
            limit_s,
            self._is_card_free,
            lambda title: self._tell(f"faults: {title}"),
        ):
            before = expectations.measured_before(identity["card"], identity["release"])
            if before is not None and row["key"] in before.faults:
                row["expected"] = before.faults[row["key"]]
            if "problem" in row:
                self._lose("faults", row["key"], row["problem"])
            else:
                self._found.faults.append(row)

    def _is_card_free(self) -> bool:
        """Returns whether all cards can be acquired; a driver may take a moment to free them."""
        time.sleep(_SETTLED_S)
        deadline = time.monotonic() + _FREE_S
        while True:
            worker = self.workers[self._modes[0]]
            options: dict[str, Any] = {}
            for _ in worker.run(
                "presence", options, num_ranks=self._num_cards, limit_s=self._options.patience_s
            ):
                pass
            if not worker.outcome.problem or time.monotonic() > deadline:
                return not worker.outcome.problem
            time.sleep(0.5)

    def _told(self, part: str, mode: str, num_ranks: int = 1) -> Iterator[dict[str, Any]]:
        """Runs a part in new processes, and yields their rows; if they fail, notes what is lost."""
        cards = f", {num_ranks} cards" if num_ranks > 1 else ""
        self._tell(f"{part} in {mode} mode{cards}")
        options = {"is_small": self._is_simulated, "is_quick": self._options.is_quick}
        worker = self.workers[mode]
        yield from worker.run(part, options, num_ranks=num_ranks, limit_s=self._options.patience_s)
        if worker.outcome.problem:
            self._lose(part, f"{mode} mode{cards}", worker.outcome.problem)

    def _add(self, row: dict[str, Any]) -> None:
        if "note" in row:
            self._lose("steps", "all of them", row["note"])
            return
        kept = {key: value for key, value in row.items() if key not in ("is", "rank", "row")}
        self._found.figures.setdefault(row["row"], []).append(kept)

    def _lose(self, part: str, what: str, how: str) -> None:
        self._found.lost.append({"part": part, "what": what, "how": how})


def today() -> str:
    """Returns the current time in the format of the file."""
    return f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _why_no_card(problems: Sequence[str]) -> str:
    said = next(iter(problems), "")
    if any(word in problem.lower() for problem in problems for word in _BUSY):
        return (
            f"the card cannot be taken; another program has it ({said}). End that program "
            "(`hl-smi` names it), or leave its cards out with HABANA_VISIBLE_MODULES."
        )
    return (
        f"no card can be used here: {said}. Run `lightning-gaudi doctor`, which finds out why, or "
        "try simulated cards: lightning-gaudi simulate --cards 2 -- lightning-gaudi verify"
    )
