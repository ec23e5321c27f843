"""What a program rehearses: a few steps on a dry card for each batch size, in forks, then it ends.

A fork of the program has a card of its own. `trainer` has a Trainer run in them, and `fabric` the
loops that a program has written itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lightning_gaudi._core.mirror import Family
from lightning_gaudi.published import PublishedRun
from lightning_gaudi.simulator.memory import own_server, unlimited_memory
from lightning_gaudi.tools.plan.forks import Fork, RehearsalError
from lightning_gaudi.tools.plan.measurement import Counts, MemoryWatch, Watch
from lightning_gaudi.tools.plan.model_changes import EmptyWeights
from lightning_gaudi.tools.plan.request import MAX_FORKS, VARIABLE, Rehearsed, Request
from lightning_gaudi.tools.plan.run import Run
from lightning_gaudi.tools.plan.search import Need, largest_within

_SEARCH_S = 300.0
"""For how long the largest batch is looked for; what is measured then is measured to its end."""

_empty_weights: EmptyWeights | None = None


def leave_weights_empty() -> None:
    """Lets models that the program makes from now on take no memory; again is harmless."""
    global _empty_weights
    if _empty_weights is None:
        _empty_weights = EmptyWeights()
        _empty_weights.__enter__()  # type: ignore[no-untyped-call]


def fill_weights() -> None:
    """Fills what is made from now on as usual; again is harmless."""
    global _empty_weights
    if _empty_weights is not None:
        _empty_weights.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _empty_weights = None


def settings(request: Request) -> dict[str, Any]:
    """Returns the arguments of a Trainer or Fabric that a request asks for."""
    asked = {"strategy": request.strategy, "precision": request.precision}
    found = {name: value for name, value in asked.items() if value is not None}
    return {"devices": request.devices, **found}


def measure(
    request: Request,
    start: Callable[[Callable[[Run], Watch], int | None], Fork],
    published: PublishedRun | None,
) -> NoReturn:
    """Measures all that a request asks, and ends the program.

    Args:
        request: What to rehearse.
        start: Begins a fork with a watch, in batches of a size or, if that is None, as they are.
        published: What the program tells of a published run.

    Raises:
        SystemExit: When all is measured.
    """

    def needs(batch_sizes: Collection[int]) -> dict[int, Need]:
        found, forks = {}, dict[int, Fork]()
        for size in batch_sizes:
            if len(forks) >= MAX_FORKS:
                done = next(iter(forks))
                found[done] = Rehearsed(**forks.pop(done).found()).need
            forks[size] = start(MemoryWatch, size)
        return found | {size: Rehearsed(**fork.found()).need for size, fork in forks.items()}

    try:
        thorough = partial(MemoryWatch, is_thorough=True)
        counting, measuring = (start(each, request.batch_size) for each in (Counts, thorough))
        first = Rehearsed(**measuring.found())
        _write(
            request,
            {
                "rehearsed": asdict(first),
                "counted": counting.found(),
                "published": asdict(published) if published else None,
            },
        )
        end = time.monotonic() + _SEARCH_S
        found = largest_within(
            needs,
            request.budgets,
            {first.batch_size: first.need},
            lambda: time.monotonic() > end,
            held=first.held_bytes,
        )
        _write(request, {"largest": found.sizes, "is_complete": found.is_complete})
    except RehearsalError as error:
        _write(request, {"error": str(error)})
        raise SystemExit(1) from None
    raise SystemExit(0)


def read_request() -> Request:
    """Returns what the environment asks this program to rehearse."""
    return Request.load(Path(os.environ[VARIABLE]))


def _write(request: Request, found: dict[str, Any]) -> None:
    with Path(request.result).open("a") as file:
        file.write(json.dumps(found) + "\n")


def begin_fork(family: Family) -> None:
    """Gives this process, a fork, a card of its own, beside ranks that are not there."""
    unlimited_memory()
    own_server()
    group = family.find("distributed.process_group")
    group._check_cards = lambda node_rank: None
