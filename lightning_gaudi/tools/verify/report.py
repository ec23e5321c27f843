"""Reports what was measured in at most 25 lines, with what the tables say beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.tools.verify import expectations
from lightning_gaudi.tools.verify.faults import FAULTS
from lightning_gaudi.tools.verify.run import Verification
from lightning_gaudi.untrusted import printable

MAX_LINES = 25
_WIDTH = 118
_MAX_LOST = 3
_SAYS = {
    "refused": "it is refused",
    "on_cpu": "the CPU computes it",
    "waits": "the host waits",
    "demoted": "other numbers",
    "as_said": "as the rule says",
    "none": "as on a CPU",
}
_MEMORY = {
    "alignment_bytes": "rounding",
    "header_bytes": "header",
    "small_bytes": "small chunks of",
    "num_small": "their number",
    "at_start_bytes": "at the start",
    "limit_bytes": "limit",
    "workspace_bytes": "workspace kept",
}


def differences(found: Verification) -> list[str]:
    """Returns a line for each rule, term of memory and fault in which card and tables differ."""
    return [*_rules(found), *_memory(found), *_faults(found)]


def _rules(found: Verification) -> Iterator[str]:
    for row in found.rules:
        if row["found"] != row["expected"]:
            said = f" ({row['detail']})" if row["detail"] else ""
            yield (
                f"{row['key']} ({row['mode']}): the table says {_SAYS[row['expected']]}, the card "
                f"says {_SAYS[row['found']]}{said}"
            )


def _memory(found: Verification) -> Iterator[str]:
    expected = expectations.memory_terms(found.identity["card"], found.identity["release"])
    if found.memory is None or expected is None:
        return
    for name, value in asdict(expected).items():
        measured = found.memory[name]
        # The bytes that stay in the workspace are news, since nobody has published them.
        if measured != value:
            yield (f"memory, {_MEMORY[name]}: the table says {value:,}, the card says {measured:,}")


def _faults(found: Verification) -> Iterator[str]:
    titles = {fault.key: fault.title for fault in FAULTS}
    for row in found.faults:
        if row["found"] != row["expected"]:
            yield (
                f"{titles[row['key']]}: the table says {row['expected']!r}, the card says "
                f"{row['found']!r}"
            )


def render(found: Verification, path: str) -> str:
    """Returns the report.

    Args:
        found: The measurements.
        path: The path of the file.
    """
    figures = [line for line in _figures(found) if line]
    differing = differences(found)
    end = [f"All of it is in {path}: attach that to a report. It holds no secrets."]
    lost = _lost(found)
    head = [*_head(found), *_counts(found, differing)]
    room = MAX_LINES - len(head) - len(figures) - len(lost) - len(end)
    shown = [f"  {line}" for line in differing]
    if len(shown) > room:
        shown = [*shown[: room - 1], f"  and {len(differing) - room + 1} more, in the file"]
    lines = [*head, *shown, *figures, *lost, *end]
    return "\n".join(printable(line, max_chars=100_000)[:_WIDTH] for line in lines)


def _head(found: Verification) -> Iterator[str]:
    identity = found.identity
    card = GAUDIS.get(identity["card"])
    title = card.title if card else identity["device_name"]
    simulated = " (simulated: times are this CPU's)" if identity["is_simulated"] else ""
    cards = f"{identity['num_cards']} x {title}{simulated}"
    yield (
        f"lightning-gaudi verify {identity['lightning_gaudi']}: {cards}, software "
        f"{identity['release']}, torch {identity['versions'].get('torch', '?')}"
    )
    levels = Counter(each["level"] for each in identity["doctor"]["findings"])
    yield (
        f"{identity['date']}, {found.seconds:.0f} s, modes {' and '.join(identity['modes'])}; "
        f"doctor: {levels['error']} errors, {levels['warning']} warnings"
    )


def _counts(found: Verification, differing: Sequence[str]) -> Iterator[str]:
    if found.rules:
        num_rules, num_probes, num_reasons = expectations.counts()
        same = sum(row["found"] == row["expected"] for row in found.rules)
        yield (
            f"rules: {len(found.rules)} of {num_rules} probed here, {same} as the table says, "
            f"{len(found.rules) - same} otherwise"
        )
        left = num_probes - len(found.rules)
        yield (
            f"       {left} have a probe that is not for this card, release or mode; "
            f"{num_reasons} have none, for reasons"
        )
    if found.memory is not None:
        terms = found.memory
        yield (
            f"memory: rounds up to {terms['alignment_bytes']} bytes, {terms['num_small']:,} small "
            f"chunks of {terms['small_bytes']}, {terms['at_start_bytes']:,} at the start, limit "
            f"{terms['limit_bytes'] / 2**30:.2f} GiB"
        )
    if found.faults:
        ends = (f"{row['key'].replace('_', ' ')}: {row['found']}" for row in found.faults)
        yield f"faults: {', '.join(ends)}"
    if differing:
        yield "otherwise than the tables say:"
    elif found.rules or found.memory or found.faults:
        yield "nothing is otherwise than the tables say"


def _figures(found: Verification) -> Iterator[str]:
    rows = found.figures
    if launches := rows.get("launches"):
        each = ", ".join(f"{row['mode']} {_time(row['seconds'])}" for row in launches)
        yield f"a launch: {each}"
    if compiled := rows.get("compile"):
        for mode in dict.fromkeys(row["mode"] for row in compiled):
            each = ", ".join(
                f"{row['num_nodes']} nodes {_time(row['seconds'])}"
                for row in compiled
                if row["mode"] == mode
            )
            yield f"to compile, {mode}: {each}"
    yield _matmuls(found, rows.get("matmuls", []))
    yield _bandwidths(found, rows.get("operators", []))
    yield _copies(rows.get("copies", []))
    yield _collectives(rows.get("collectives", []))
    steps = rows.get("steps", [])
    for mode in dict.fromkeys(row["mode"] for row in steps):
        of_mode = [row for row in steps if row["mode"] == mode]
        each = ", ".join(
            f"{row['step']} {_time(row['seconds'] / row.get('tokens', 1))}" for row in of_mode
        )
        small = " (of small models)" if any(row["is_small"] for row in of_mode) else ""
        yield f"a step{small}, {mode}: {each}"


def _matmuls(found: Verification, rows: Sequence[Mapping[str, Any]]) -> str:
    card = GAUDIS.get(found.identity["card"])
    words = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        best = max(row["flops"] for row in rows if row["dtype"] == dtype)
        peak = card.peak(dtype) if card and not found.identity["is_simulated"] else None
        of_peak = f" (the table's peak {peak / 1e12:.0f})" if peak else ""
        words.append(f"{dtype} {best / 1e12:.3g}{of_peak}")
    return f"products of matrices, at best, TFLOP/s: {', '.join(words)}" if words else ""


def _bandwidths(found: Verification, rows: Sequence[Mapping[str, Any]]) -> str:
    card = GAUDIS.get(found.identity["card"])
    words = []
    for name in dict.fromkeys(row["operator"] for row in rows):
        best = max(row["bytes_per_s"] for row in rows if row["operator"] == name)
        words.append(f"{name} {best / 1e9:.3g}")
    is_compared = card is not None and not found.identity["is_simulated"]
    limit = f" (the table's memory {card.bandwidth / 1e9:.0f})" if card and is_compared else ""
    return f"operators, at best, GB/s: {', '.join(words)}{limit}" if words else ""


def _copies(rows: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        for is_pinned in (False, True):
            best = max(
                row["bytes_per_s"]
                for row in rows
                if (row["direction"], row["is_pinned"]) == (direction, is_pinned)
            )
            words.append(f"{direction}{', pinned' if is_pinned else ''} {best / 1e9:.3g}")
    return f"copies, at best, GB/s: {'; '.join(words)}" if words else ""


def _collectives(rows: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for number in dict.fromkeys(row["num_cards"] for row in rows):
        of_number = [row for row in rows if row["num_cards"] == number]
        best = {row["collective"]: 0.0 for row in of_number}
        for row in of_number:
            best[row["collective"]] = max(best[row["collective"]], row["bytes_per_s"])
        each = ", ".join(f"{name} {speed / 1e9:.3g}" for name, speed in best.items())
        words.append(f"{number} cards: {each}")
    return f"collectives, sent at best, GB/s: {'; '.join(words)}" if words else ""


def _lost(found: Verification) -> list[str]:
    told = (f"not measured: {row['part']}, {row['what']}: {row['how']}" for row in found.lost)
    lines = [*dict.fromkeys(told)]  # often the same in either mode
    if len(lines) > _MAX_LOST:
        lines = [*lines[:_MAX_LOST], f"and {len(lines) - _MAX_LOST} more were not measured"]
    return lines


def _time(seconds: float) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
