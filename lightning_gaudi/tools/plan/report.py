"""Renders a plan as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.tools.plan.cards import Card
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.published import step_seconds
from lightning_gaudi.tools.plan.published_text import published_text
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request
from lightning_gaudi.tools.plan.search import LARGEST
from lightning_gaudi.tools.plan.step_times import AsPublicRuns, duration, of_card

_SHOWN_BYTES = 2**16
"""The least memory of the host that is worth a line."""


def text(
    planned: Planned,
    cards: Sequence[Card],
    *,
    num_steps: int | None = None,
    price: float | None = None,
) -> str:
    """Returns what a way to run a program takes, and which cards it fits.

    Args:
        planned: The way to run the program.
        cards: The cards that it is judged by.
        num_steps: The steps of a whole run, to say how long it takes; by default a published run's.
        price: The price of an hour of a card in any currency, to say what the run costs.
    """
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
        f"{'unfused':>12}{'as public runs were':>24}",
    ]
    for card in cards:
        if card.key in planned.largest:
            lines.append(_verdict(card, found, counted, planned.largest[card.key]))
    lines += _measured(cards, planned)
    lines += _kept(cards, planned)
    lines += _guessed(found)
    if not planned.is_searched:
        reason = planned.why or "The search took too long and was ended."
        lines.append(f"  {reason} Larger batches may fit.")
    lines.append(
        "  Times are estimates by the cards' peaks, not measurements: at least, what is computed,\n"
        "  sent and held whatever the batch takes; unfused, as if each operator used the memory."
    )
    lines += _as_public_runs(cards, planned, found, counted, num_steps, price)
    return "\n".join([*lines, *published_text(planned), ""])


def _as_public_runs(
    cards: Sequence[Card],
    planned: Planned,
    found: Rehearsed,
    counted: Counted,
    num_steps: int | None,
    price: float | None,
) -> list[str]:
    """Returns what the last column is made of, why it is empty, and how long a whole run takes."""
    known = {
        card.title: of_card(card, counted, found)
        for card in cards
        if card.key in planned.largest and card.key in GAUDIS
    }
    lines, reasons = [], dict[str, list[str]]()
    for title, each in known.items():
        if each.fit is not None:
            lines.append(
                f"    {title}: {each.fit.num_figures} figures of {each.fit.num_models} models, "
                f"software {' to '.join(each.fit.releases)}; half missed by less than "
                f"{each.fit.median_error:.0%}"
            )
            lines += _pace(title, each)
        elif each.why_not:
            reasons.setdefault(each.why_not, []).append(title)
    if lines:
        lines.insert(
            0, f"  As public runs were: fitted to figures of {_kinds(known)}. Eight of ten"
        )
        lines.insert(1, "  lie in the range if no figure of their model is used.")
        if not found.is_lazy and not any(each.paces for each in known.values()):
            lines.append("    They ran in lazy mode: in eager mode one took 1.6 times as long.")
    lines += [
        f"  Not as public runs were ({', '.join(names)}): {why}." for why, names in reasons.items()
    ]
    if num_steps is None and planned.published is not None:
        num_steps = planned.published.num_steps
    for title, each in known.items():
        if num_steps and each.low is not None and each.high is not None:
            lines.append(_whole_run(title, each, num_steps, found.num_cards, price))
    return lines


def _pace(title: str, each: AsPublicRuns) -> list[str]:
    """Returns what a card that was measured changes of the estimate."""
    lines = []
    if each.paces:
        steps = ", ".join(f"{name} {pace:.2f}" for name, pace in each.paces.items())
        lines.append(f"    {title}: its own steps took so many times as long, as here: {steps}")
    if each.bounds:
        lines.append(f"    {title}: as slow as it was measured: {', '.join(each.bounds)}")
    return lines


def _kinds(known: Mapping[str, AsPublicRuns]) -> str:
    return " and ".join(dict.fromkeys(each.kind for each in known.values() if each.fit))


def _whole_run(
    title: str, each: AsPublicRuns, num_steps: int, num_cards: int, price: float | None
) -> str:
    assert each.low is not None
    assert each.high is not None
    ends = num_steps * each.low, num_steps * each.high
    line = (
        f"  {num_steps:,} steps: {duration(ends[0])} to {duration(ends[1])} on {num_cards} {title}"
    )
    if price is None:
        return line
    costs = [end / 3600 * num_cards * price for end in ends]
    return f"{line}, which cost {costs[0]:,.2f} to {costs[1]:,.2f}"


def _measured(cards: Sequence[Card], planned: Planned) -> list[str]:
    """Returns of which cards memory and speeds were measured, and do not come from the tables."""
    lines = []
    for card in cards:
        if card.measured is not None and card.key in planned.largest:
            what = "memory" if card.measured.is_simulated else "memory, speeds and step times"
            lines.append(
                f"  {card.title}: {what} as {card.measured.path} says, as far as it has them."
            )
    return lines


def _kept(cards: Sequence[Card], planned: Planned) -> list[str]:
    """Returns the lines on the memory that is kept free, and what may need it."""
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
    """Returns the lines of code at which the size of a result depends on values of a real run."""
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
    likely = of_card(card, counted, found)
    span = "-"
    if likely.low is not None and likely.high is not None:
        span = f"{_time(likely.low)} to {_time(likely.high)}"
    return (
        f"  {card.title:14}{gib(card.memory_bytes):>10}{peak:>9}{best:>15}"
        f"{times[0]:>18}{times[1]:>12}{span:>24}"
    )


def _time(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
