"""Rehearses a program in several ways, and says which cards each would fit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_gaudi._core.processes import end_group
from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.published import PublishedRun
from lightning_gaudi.simulator.measured import variable_for
from lightning_gaudi.simulator.settings import (
    CARD,
    DRY,
    MAX_CARDS,
    RULES,
    SIMULATE,
    path_with_stand_in,
    read_release,
)
from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.request import MAX_FORKS, Counted, Rehearsed, Request, read_results


class PlanError(RuntimeError):
    """Says that a program could not be rehearsed, and why."""


@dataclass(frozen=True)
class Planned:
    """Describes a way to run a program, and what it takes."""

    request: Request
    change: str
    """What differs from the program, in words; empty for the program as it is."""
    rehearsed: Rehearsed | None
    counted: Counted | None = None
    largest: Mapping[str, int] = field(default_factory=dict)
    """The largest batch of each card by the card's key; 0 if not one sample fits."""
    is_searched: bool = True
    """Whether the search for larger batches came to its end; False if it took too long."""
    why: str = ""
    """Why larger batches could not be rehearsed; empty if the search took too long."""
    on: str = ""
    """The title of the card if it was rehearsed for that one alone."""
    error: str = ""
    """Why it could not be rehearsed."""
    instead: str = ""
    """The setting that the program names where it refuses to run so."""
    published: PublishedRun | None = None
    """The published run that the program declares to be; None if it is changed."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as plain data for JSON."""
        found = asdict(self)
        found["request"] = {
            name: value
            for name, value in found["request"].items()
            if name not in ("budgets", "unfused", "result")
        }
        return found


_ENOUGH = 2**10
"""The seconds after which a rehearsal is given up."""

_LOOK_S = 0.5
"""The seconds between two looks at what a rehearsal has found so far."""

_NOTHING_RAN = (
    'nothing in it used a card. Have it train on "hpu", or plan its module with a batch '
    "(lightning_gaudi.tools.plan.plan.plan_module)"
)

_FAILED = "nothing in it had used a card by then: mend what it says itself"

_SHARDED_WEIGHTS = "ZeRO-3 on 8 cards"
_CHECKPOINTED = ", activation checkpointing"

CHANGES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("activation checkpointing", {"checkpointing": True}),
    ("bf16-mixed", {"precision": "bf16-mixed"}),
    ("ZeRO-1 on 8 cards", {"strategy": "deepspeed_stage_1", "devices": 8}),
    ("ZeRO-2 on 8 cards", {"strategy": "deepspeed_stage_2", "devices": 8}),
    (_SHARDED_WEIGHTS, {"strategy": "deepspeed_stage_3", "devices": 8}),
    (
        f"{_SHARDED_WEIGHTS}{_CHECKPOINTED}",
        {"strategy": "deepspeed_stage_3", "devices": 8, "checkpointing": True},
    ),
    (
        f"{_SHARDED_WEIGHTS} with its optimizer on the host{_CHECKPOINTED}",
        {"strategy": "deepspeed_stage_3_offload", "devices": 8, "checkpointing": True},
    ),
)
"""The changes that may make a program fit; first come those that cost time, then cards or host."""


def plan(
    command: Sequence[str],
    request: Request,
    cards: Sequence[Card],
    *,
    with_changes: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    change: str = "",
) -> Iterator[Planned]:
    """Rehearses a program as it is and, if it does not fit a card, with changes that make it fit.

    Args:
        command: The program, which runs a Trainer.
        request: How the program should run.
        cards: The cards that it might run on.
        with_changes: Whether to look for changes.
        tell: Is called with a sentence on what happens next.
        change: How the request differs from the program as it is, in words.

    Raises:
        PlanError: The program itself cannot be rehearsed.
    """
    missing = [*cards]
    rehearsed: Rehearsed | None = None
    for found in _Way(command, request, cards, change, tell).rehearsed_for_each():
        if found.rehearsed is None:
            if change:
                yield found
                return
            raise PlanError(found.error)
        if request.checkpointing and not found.rehearsed.can_checkpoint:
            raise PlanError(
                "--checkpointing has modules of transformers compute activations again, and this "
                "program has none that can (no `gradient_checkpointing_enable`): it would be "
                "planned as it is. Leave it out, or have the program checkpoint its activations "
                "itself."
            )
        yield found
        rehearsed = rehearsed or found.rehearsed
        missing = [card for card in missing if not found.largest.get(card.key)]
    assert rehearsed is not None
    setting = ""  # named by a refusal, and used for the next changes, which would be refused alike
    for change, values in _changes(rehearsed) if with_changes else ():
        changed = replace(request, **values)
        if not missing or changed == request:
            continue
        if error := _too_large_here(changed, rehearsed):
            yield Planned(changed, change, None, error=error)
            continue
        # Only shards reduce the memory that a step holds whatever the batch.
        held = rehearsed.held_bytes if "strategy" not in values else 0
        if all(held > card.budget_bytes for card in missing):
            continue
        known = setting if "strategy" in values else ""
        for tried in _Way(command, changed, missing, change, tell).rehearsed_as_told(known):
            yield tried
            setting = tried.instead or setting
            missing = [card for card in missing if not tried.largest.get(card.key)]


def _changes(found: Rehearsed) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Returns the changes that may reduce a program's memory; only shards if nothing is trained."""
    if not found.has_strategy:
        return [
            each for each in CHANGES if found.can_checkpoint and [*each[1]] == ["checkpointing"]
        ]
    if not found.categories["gradients"] and not found.categories["optimizer state"]:
        return [(change, values) for change, values in CHANGES if change == _SHARDED_WEIGHTS]
    if found.can_checkpoint:
        return CHANGES
    left: dict[str, Mapping[str, Any]] = {}
    for change, values in CHANGES:
        name = change.removesuffix(_CHECKPOINTED)
        left.setdefault(name, {key: each for key, each in values.items() if key != "checkpointing"})
    return [(change, values) for change, values in left.items() if values]


def _too_large_here(request: Request, found: Rehearsed) -> str:
    """Returns why a rank that offloads to the host, into real memory, cannot be rehearsed here."""
    if "offload" not in (request.strategy or ""):
        return ""
    needed, free = found.held_bytes // (request.devices or 1) * MAX_FORKS, _free_bytes()
    if free is None or needed <= free:
        return ""
    return (
        f"what each rank would have on the host takes {needed / 2**30:.1f} GiB in the "
        f"{MAX_FORKS} rehearsals at a time, and {free / 2**30:.1f} GiB are free on this machine."
    )


def _free_bytes() -> int | None:
    """Returns the free memory of this machine in bytes; None if the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 2**10
    return None


@dataclass(frozen=True)
class _Way:
    """Rehearses one way to run a program."""

    command: Sequence[str]
    request: Request
    cards: Sequence[Card]
    """The cards that it is judged by."""
    change: str
    """What differs from the program, in words."""
    tell: Callable[[str], None]

    def rehearsed_as_told(self, known: str) -> Iterator[Planned]:
        """Rehearses a change and, if the program refuses it, again with the setting that it names.

        Args:
            known: A setting that the program has named before, to begin with; or empty.
        """
        if known:
            found = [*self._following(known)]
            if found[0].rehearsed is not None:
                yield from found
                return
        first, *more = self.rehearsed_for_each()
        if first.rehearsed is None and first.instead:
            self.tell(f"  {first.error}")
            yield from self._following(first.instead)
            return
        yield from (first, *more)

    def _following(self, setting: str) -> Iterator[Planned]:
        """Rehearses the way with a setting that the program has named."""
        change = f"{self.change}, {setting}"
        told = replace(self, command=[*self.command, f"--{setting}"], change=change)
        return (replace(each, instead=setting) for each in told.rehearsed_for_each())

    def rehearsed_for_each(self) -> Iterator[Planned]:
        """Rehearses the way, and again for cards on which its attention is not fused."""
        on = f", on a {title}" if (title := _alone(self.cards)) else ""
        what = self.change or "as it is"
        self.tell(f"{what}{on}: it starts")
        with tempfile.TemporaryDirectory(prefix="lightning-gaudi-plan-") as folder:
            result, written = Path(folder, "result"), Path(folder, "request")
            asked = replace(
                self.request,
                result=str(result),
                budgets=tuple(card.budget_bytes for card in self.cards),
                unfused=tuple("" if card.has_fused_attention else card.key for card in self.cards),
            )
            try:
                env = _environment(asked.environment(written), self.cards)
                status, output = _run(self.command, env, _Progress(result, what, self.tell))
                reason = f"the program ended with status {status}"
                nothing = _FAILED if status else _NOTHING_RAN
            except FileNotFoundError:
                raise PlanError(f"{self.command[0]}: command not found.") from None
            except subprocess.TimeoutExpired:
                output, reason = "", f"it took more than {_ENOUGH} seconds"
                nothing = _NOTHING_RAN
            found = read_results(result)
        why = (reason, nothing, output)
        at = next((index for index, each in enumerate(found) if "on" in each), None)
        if at is None:
            yield self._planned(found, self.cards, why)
            return
        others = [card for card in self.cards if not card.has_fused_attention]
        first = self._planned(found[:at], self.cards, why)
        keys = {card.key for card in others}
        left = {key: size for key, size in first.largest.items() if key not in keys}
        yield replace(first, largest=left)
        yield self._planned(found[at + 1 :], others, why)

    def _planned(
        self, found: list[dict[str, Any]], cards: Sequence[Card], why: tuple[str, str, str]
    ) -> Planned:
        """Returns the plan of a rehearsal.

        Args:
            found: The results that the program has written.
            cards: The cards that it was judged by.
            why: How the program ended, what it means that no card was used, and what it printed,
                for the error if results are missing.
        """
        errors = [each["error"] for each in found if "error" in each]
        first = next((each for each in found if "rehearsed" in each), None)
        last = next((each for each in found if "largest" in each), None)
        if errors or first is None or last is None:
            reason, nothing, output = why
            what = nothing if first is None else "no largest batch was found"
            error = errors[0] if errors else f"{reason}, and {what}.\n{output}"
            instead = next((each.get("instead", "") for each in found if "error" in each), "")
            return Planned(self.request, self.change, None, error=error.strip(), instead=instead)
        largest = dict(zip((card.key for card in cards), last["largest"], strict=True))
        rehearsed = Rehearsed(**first["rehearsed"])
        published = first["published"] if not self.change else None
        return Planned(
            replace(self.request, devices=rehearsed.num_cards),
            self.change,
            rehearsed,
            Counted(**first["counted"]),
            largest,
            is_searched=last["is_complete"],
            why=last["why"],
            on=_alone(cards),
            published=PublishedRun.of(published) if published else None,
        )


class _Progress:
    """Reports what a rehearsal has written since the last look."""

    def __init__(self, result: Path, what: str, tell: Callable[[str], None]) -> None:
        self._result, self._what, self._tell = result, what, tell
        self._num_told = 0
        self._begun = time.monotonic()

    def look(self) -> None:
        """Reports what is new."""
        found = read_results(self._result)
        for each in found[self._num_told :]:
            text = ""
            if "rehearsed" in each:
                text = f"batch {each['rehearsed']['batch_size']} measured"
            elif "tried" in each:
                text = f"batch {', '.join(map(str, each['tried']))} tried for the largest one"
            elif "on" in each:
                self._tell(f"{self._what}, on a {GAUDIS[each['on']].title}: its attention unfused")
            if text:
                self._tell(f"  {text} ({time.monotonic() - self._begun:.0f} s)")
        self._num_told = len(found)


def _run(command: Sequence[str], env: dict[str, str], progress: _Progress) -> tuple[int, str]:
    """Runs a program; returns its exit status and its last words, and leaves no process."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        list(command), env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        end = time.monotonic() + _ENOUGH
        while True:
            try:
                said, errors = process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                progress.look()
                if time.monotonic() > end:
                    raise
            else:
                break
        progress.look()
    finally:
        process.kill()
        process.wait()
        end_group(process.pid)  # ends its forks, of which usually none is left
    return process.returncode, f"{said[-2000:]}{errors[-3000:]}"


def _alone(cards: Sequence[Card]) -> str:
    """Returns the title of cards without fused attention if all cards are such; else ""."""
    return "" if any(card.has_fused_attention for card in cards) else cards[0].title


def _environment(request: Mapping[str, str], cards: Sequence[Card]) -> dict[str, str]:
    """Returns the environment of a program's first rank, on a dry card."""
    # One stands for all cards with fused attention, which plan alike.
    fused = next(key for key, gaudi in GAUDIS.items() if gaudi.has_fused_attention)
    key = cards[0].key if _alone(cards) else fused
    return os.environ | {
        **request,
        SIMULATE: str(MAX_CARDS),
        DRY: "1",
        RULES: "off",
        CARD: key,
        **variable_for(key, read_release().software),
        "LIGHTNING_GAUDI_RELIABILITY": "off",
        "PYTHONPATH": path_with_stand_in(),
    }


def plan_module(
    make: Any, batch: Any, request: Request, cards: Sequence[Card], *, with_changes: bool = True
) -> list[Planned]:
    """Plans the training of a module on a batch.

    Args:
        make: An importable function that makes the module, or the module itself, which is pickled.
            It is a LightningModule, or a module of torch, which AdamW trains on its loss.
        batch: The arguments of the module: keyword arguments in a dict, positional ones in a
            sequence.
        request: How it should run.
        cards: The cards that it might run on.
        with_changes: Whether to look for changes that make it fit.

    Raises:
        PlanError: It cannot be rehearsed.
    """
    with tempfile.TemporaryDirectory(prefix="lightning-gaudi-plan-") as folder:
        path = Path(folder, "module")
        path.write_bytes(pickle.dumps((make, batch)))
        program = [sys.executable, "-m", "lightning_gaudi.tools.plan.module_program", str(path)]
        return list(plan(program, request, cards, with_changes=with_changes))
