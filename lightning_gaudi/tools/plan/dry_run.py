"""Rehearses a program: a few steps on a dry card for each batch size, each in a fork, then it ends.

Each fork of the program has a card of its own. `trainer` runs a Trainer in the forks, and `fabric`
and `plain` run loops that a program has written itself.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lightning_gaudi._core.mirror import Family
from lightning_gaudi._core.workers import start as worker_start
from lightning_gaudi.published import PublishedRun
from lightning_gaudi.simulator.memory import own_server, take_card, unlimited_memory
from lightning_gaudi.tools.plan.forks import Fork, RehearsalError, Teller, TookTooLongError
from lightning_gaudi.tools.plan.measurement import Counts, MemoryWatch, Watch
from lightning_gaudi.tools.plan.request import MAX_FORKS, VARIABLE, Rehearsed, Request, first_rank
from lightning_gaudi.tools.plan.run import Run
from lightning_gaudi.tools.plan.search import Need, largest_within
from lightning_gaudi.tools.plan.writes import write_apart

_LEAST_SEARCH_S, _MOST_SEARCH_S = 10.0, 300.0
"""The least and most seconds to look for the largest batch.

Between them, the search takes four times as long as the program's own batch did. A measurement that
has begun is finished."""

_LEAST_SIZE_S = 5.0
"""The least seconds that one size may take; otherwise twice as long as the program's own did."""

_NO_LOADER = (
    "Its batches come from no torch DataLoader, so that no other size was tried. Give it a "
    "DataLoader, or plan it once more with its own option for the size of a batch."
)


class Played(NamedTuple):
    """Says what a fork has to find out."""

    teller: Teller
    make_watch: Callable[[Run], Watch]
    batch_size: int | None
    """The size of all batches; None for the program's own."""


_is_playing = False
_card = ""
"""The key of the card that forks take; empty for the one that is simulated."""
_offered: tuple[Played, Callable[[], None]] | None = None


def is_playing() -> bool:
    """Returns whether this process is a fork that rehearses."""
    return _is_playing


def offer(played: Played, give_up: Callable[[], None]) -> None:
    """Lets a rehearsal of Lightning take the place of one of a plain loop that has begun.

    Args:
        played: What the rehearsal has to find out.
        give_up: Ends the rehearsal of the plain loop.
    """
    global _offered
    _offered = played, give_up


def taken_over() -> Played | None:
    """Returns what this process already rehearses, for another rehearsal to go on with; or None."""
    global _offered
    if _offered is None:
        return None
    (played, give_up), _offered = _offered, None
    give_up()
    return played


def settings(request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a Trainer or Fabric: those given, with those that a request sets.

    This process becomes the first of as many ranks as the request or the program asks for.
    """
    asked = {"strategy": request.strategy, "precision": request.precision}
    found = {name: value for name, value in asked.items() if value is not None}
    num_nodes = 1
    if (devices := request.devices) is None:
        num_nodes = int(given.get("num_nodes") or 1)
        devices = _num_cards_of(given.get("devices"), given.get("strategy"), num_nodes)
    _play_first_rank(num_nodes * devices, devices)
    return {"devices": devices, "num_nodes": num_nodes, "accelerator": "hpu", **found}


def _num_cards_of(devices: Any, strategy: Any, num_nodes: int) -> int:
    """Returns the number of cards of a node on which a program runs; one if it does not say."""
    if isinstance(devices, str) and devices.strip().lstrip("-").isdigit():
        devices = int(devices)
    if isinstance(devices, int) and devices > 0:
        return devices
    if isinstance(devices, (list, tuple)) and devices:
        return len(devices)
    if isinstance(devices, str) and "," in devices:
        return len([each for each in devices.split(",") if each.strip()])
    num_cards = 1
    for kind in ("data", "tensor"):  # of ModelParallelStrategy
        size = getattr(strategy, f"_{kind}_parallel_size", None)
        num_cards *= size if isinstance(size, int) else 1
    return max(1, num_cards // num_nodes)


def _play_first_rank(world_size: int, num_cards: int) -> None:
    """Makes this process the first of `world_size` ranks, `num_cards` of which are on its node."""
    for name in first_rank(2, 2):
        os.environ.pop(name, None)
    os.environ.update(first_rank(world_size, num_cards))


def measure(
    request: Request,
    start: Callable[[Callable[[Run], Watch], int | None], Fork],
    published: PublishedRun | None,
) -> NoReturn:
    """Measures all that a request asks for, and ends the program.

    Args:
        request: What to rehearse.
        start: Starts a fork with a watch and a batch size; None for the program's own.
        published: The published run that the program declares.

    Raises:
        SystemExit: All is measured.
    """
    reason, most_s, slow = "", _LEAST_SIZE_S, math.inf

    def need_of(size: int, fork: Fork) -> Need | None:
        nonlocal reason, slow
        try:
            return Rehearsed(**fork.found(most_s)).need
        except RehearsalError as error:
            if isinstance(error, TookTooLongError):
                slow = min(size, slow)  # on every card
            reason = f"A batch of {size} could not be rehearsed: {error}"
            return None

    def needs(batch_sizes: Collection[int]) -> dict[int, Need | None]:
        found: dict[int, Need | None] = {size: None for size in batch_sizes if size >= slow}
        forks: dict[int, Fork] = {}
        for size in [each for each in batch_sizes if each not in found]:
            if len(forks) >= MAX_FORKS:
                done = next(iter(forks))
                found[done] = need_of(done, forks.pop(done))
            forks[size] = start(MemoryWatch, size)
        found |= {size: need_of(size, fork) for size, fork in forks.items()}
        _write(request, {"tried": [*batch_sizes]})
        return found

    def measured(budgets: Sequence[int]) -> Rehearsed:
        """Measures the program's own batch, and then looks for the largest within each budget."""
        begun = time.monotonic()
        thorough = partial(MemoryWatch, is_thorough=True)
        counting, measuring = (start(each, request.batch_size) for each in (Counts, thorough))
        first = Rehearsed(**measuring.found())
        taken_s = time.monotonic() - begun
        nonlocal most_s
        most_s = max(_LEAST_SIZE_S, 2 * taken_s)
        _write(
            request,
            {
                "rehearsed": asdict(first),
                "counted": counting.found(),
                "published": asdict(published) if published else None,
            },
        )
        if not first.has_loader:
            fits = [first.batch_size * (first.need.whole <= each) for each in budgets]
            _write(request, {"largest": fits, "is_complete": False, "why": _NO_LOADER})
            return first
        end = time.monotonic() + min(max(_LEAST_SEARCH_S, 4 * taken_s), _MOST_SEARCH_S)
        found = largest_within(
            needs,
            budgets,
            {first.batch_size: first.need},
            lambda: time.monotonic() > end,
            held=first.held_bytes,
        )
        why = "" if found.is_complete else reason
        _write(request, {"largest": found.sizes, "is_complete": found.is_complete, "why": why})
        return first

    global _card
    try:
        first = measured(request.budgets)
        unfused = next(filter(None, request.unfused), "")
        if first.has_fused_attention and unfused:
            _card, reason = unfused, ""  # the forks take this card from now on
            _write(request, {"on": unfused})
            pairs = zip(request.budgets, request.unfused, strict=True)
            measured([budget for budget, key in pairs if key])
    except RehearsalError as error:
        _write(request, {"error": str(error), "instead": error.instead})
        raise SystemExit(1) from None
    raise SystemExit(0)


def read_request() -> Request:
    """Returns the request that the environment names."""
    return Request.load(Path(os.environ[VARIABLE]))


def _write(request: Request, found: dict[str, Any]) -> None:
    with Path(request.result).open("a") as file:
        file.write(json.dumps(found) + "\n")


def refuse(error: str) -> NoReturn:
    """Ends a program that cannot be rehearsed.

    Args:
        error: The reason.

    Raises:
        SystemExit: Always.
    """
    _write(read_request(), {"error": error})
    raise SystemExit(1)


def begin_fork(family: Family | None = None) -> None:
    """Gives this forked process a card of its own, in a group whose other ranks do not exist.

    Args:
        family: The family of the Trainer or Fabric, if there is one.
    """
    global _is_playing
    _is_playing = True
    unlimited_memory()
    own_server()
    if _card:
        take_card(_card)
    write_apart(Path(f"{read_request().result}.{os.getpid()}"))
    # Loaders have no workers here (`trainer.loader_for`). A server for workers would import all
    # that they need, which takes as long as a rehearsal.
    worker_start.start_server_when_needed()
    if family is not None:
        group = family.find("distributed.process_group")
        group._check_cards = lambda node_rank: None
