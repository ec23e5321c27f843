"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.published import step_seconds
from lightning_gaudi.tools.plan.published_text import published_text
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request
from lightning_gaudi.tools.plan.search import LARGEST

_SHOWN_BYTES = 2**16
"""Of the host: less is not worth a line."""


def text(planned: Planned, cards: Sequence[Card]) -> str:
    """Returns what a way to run a program takes, and which cards it fits."""
    title = planned.change or "as it is"
    title += f", on a {planned.on} (attention unfused)" if planned.on else ""
    lines = [f"{title}: {describe(planned.request)}"]
    found = planned.rehearsed
    if found is None:
        return "\n".join([*lines, f"  cannot be planned: {planned.error}", ""])
    counted = planned.counted or Counted()
    lines += _memory(found, counted)
    lines += [
        "",
        f"  {'':14}{'memory':>10}{'peak':>9}{'largest batch':>15}{'a step, at least':>18}"
        f"{'unfused':>12}",
    ]
    for card in cards:
        if card.key in planned.largest:
            lines.append(_verdict(card, found, counted, planned.largest[card.key]))
    lines += _kept(cards, planned)
    lines += _guessed(found)
    if not planned.is_searched:
        reason = planned.why or "The search took too long and was ended."
        lines.append(f"  {reason} Larger batches may fit.")
    lines.append(
        "  Times are estimates by the cards' peaks, not measurements: at least, what is computed,\n"
        "  sent and held whatever the batch takes; unfused, as if each operator used the memory."
    )
    return "\n".join([*lines, *published_text(planned), ""])


def _kept(cards: Sequence[Card], planned: Planned) -> list[str]:
    """Returns what is kept free of a card, and what may need it."""
    kept = [card for card in cards if card.kept_bytes and card.key in planned.largest]
    if not kept:
        return []
    sizes = ", ".join(f"{gib(card.kept_bytes)} ({card.title})" for card in kept)
    lines = [
        f"  Kept free (--keep-free): {sizes},",
        "  for the workspace of graphs, whose size the vendor's compiler alone knows.",
    ]
    if planned.rehearsed is not None and planned.rehearsed.is_lazy:
        lines += [
            "  In lazy mode a step is one graph or two, and it may need far more: a T5-3B of 2022",
            "  ran batch 1 at most where a plan has room for dozens. Measure MaxInUse on a card.",
        ]
    return lines


def _guessed(found: Rehearsed) -> list[str]:
    """Returns at which lines the size of a result depends on values that only a run has."""
    if not found.guessed:
        return []
    return [
        "  How large a result is depends on values that the model computes in a run: they were",
        "  taken for zeros, and a run may need more or less. Give it a fixed size to know.",
        *(f"    {place}  {operator}" for place, operator in found.guessed.items()),
    ]


def describe(request: Request) -> str:
    """Returns a request in words."""
    num_cards = request.devices or 1
    words = [f"{num_cards} card{'s' if num_cards > 1 else ''}"]
    words += [f"strategy {request.strategy}"] if request.strategy else []
    words += [f"precision {request.precision}"] if request.precision else []
    if request.checkpointing is not None:
        words.append(f"activation checkpointing {'on' if request.checkpointing else 'off'}")
    return ", ".join(words)


def gib(num_bytes: float) -> str:
    """Returns an amount of memory, in the unit that suits it."""
    if num_bytes >= 2**29:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"


def _memory(found: Rehearsed, counted: Counted) -> list[str]:
    lines = [f"  peak of a card, batch {found.batch_size}: {gib(found.peak_bytes)}"]
    for name, num_bytes in found.categories.items():
        if num_bytes:
            lines.append(f"    {name:26}{gib(num_bytes):>12}")
    lines.append(f"  held whatever the batch: {gib(found.held_bytes)}")
    if found.setup_bytes > found.peak_bytes:
        lines.append(f"    before, while it sets up:  {gib(found.setup_bytes):>12}")
    lines += _host(found)
    if counted.collective_bytes:
        sent = ", ".join(f"{kind} {gib(size)}" for kind, size in counted.collective_bytes.items())
        lines.append(f"  sent in a step: {sent}")
    return lines


def _host(found: Rehearsed) -> list[str]:
    sizes = {name: size for name, size in found.host.items() if size >= _SHOWN_BYTES}
    lines = ["  memory of the host, a process:"] if sizes else []
    lines += [f"    {name:36}{gib(size):>12}" for name, size in sizes.items()]
    if found.checkpoint:
        parts = ", ".join(f"{gib(size)} {name}" for name, size in found.checkpoint.items())
        lines.append(f"  a checkpoint: {parts}")
    return lines


def _verdict(card: Card, found: Rehearsed, counted: Counted, largest: int) -> str:
    fits = found.need.whole <= card.budget_bytes
    best = f"{largest}+" if largest >= LARGEST else str(largest) if largest else "none fits"
    peak = "fits" if fits else "too much"
    times = [_time(each) for each in step_seconds(card, found, counted)]
    return (
        f"  {card.title:14}{gib(card.memory_bytes):>10}{peak:>9}{best:>15}"
        f"{times[0]:>18}{times[1]:>12}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
