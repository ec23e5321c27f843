"""What was measured of a card, in the place of what the tables say of it.

`LIGHTNING_GAUDI_CARD` names a file that `lightning-gaudi verify` has written. Rules, the
allocator's terms and how programs end are taken from it; what it does not have stays as the
tables say.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from lightning_gaudi import measured_card
from lightning_gaudi._version import name_page
from lightning_gaudi.hardware import GAUDIS, Gaudi
from lightning_gaudi.measured_card import VARIABLE, CardFileError, MeasuredCard, MemoryTerms
from lightning_gaudi.releases import RELEASES, find_release, minor
from lightning_gaudi.simulator.rules.rule import Rule, Verdict

TABLES = Path(__file__).with_name("measured_cards")
"""What was measured on real cards: a file for a card and a release."""

_HELD_S = 120
"""How long a card is held that its program's end does not free."""

_PAGE = name_page("What a card says", "how-to/verify")


def of_repository(card: str, release: str) -> MeasuredCard | None:
    """Returns what this package has of a card and a release that somebody has measured.

    `scripts/write_card_tables.py` writes it. None where nobody has.

    Args:
        card: The generation's key.
        release: Of the Gaudi software.
    """
    path = table_path(card, release)
    return measured_card.read(path) if path.is_file() else None


def table_path(card: str, release: str) -> Path:
    """Returns the file of the package with what was measured of a card and a release."""
    return TABLES / f"{card}-{minor(release)}.json"


def load(card: str, release: str) -> MeasuredCard | None:
    """Returns what was measured of a card: what the file says that the environment names.

    Where it names none, it is what this package has of the card; None where it has nothing.

    Args:
        card: The key of the simulated card.
        release: Of the simulated software: rules of another minor one are not taken.

    Raises:
        CardFileError: It cannot be used for this card.
    """
    found = measured_card.from_environment()
    if found is None:
        return of_repository(card, release)
    check(found)
    check_card(found, card)
    check_release(found, release)
    return found


def check_release(measured: MeasuredCard, release: str) -> None:
    """Checks that a file is of a release, in its minor number.

    Raises:
        CardFileError: It was measured with another one.
    """
    if minor(measured.release) != minor(release):
        raise CardFileError(
            f"{measured.path} was measured with release {measured.release} of the Gaudi software, "
            f"and {minor(release)} is simulated. Simulate that one "
            f"(LIGHTNING_GAUDI_SIMULATE_RELEASE={minor(measured.release)}) if it can be, or unset "
            f"{VARIABLE}."
        )


def check_card(measured: MeasuredCard, card: str) -> None:
    """Checks that a file is of a card.

    Raises:
        CardFileError: It was measured on another one.
    """
    if measured.card != card:
        raise CardFileError(
            f"{measured.path} was measured on a {GAUDIS[measured.card].title}, and this is a "
            f"{GAUDIS[card].title}. Name a file of such a card, simulate the other one "
            f"(--card {measured.card}, LIGHTNING_GAUDI_SIMULATE_CARD={measured.card}), or unset "
            f"{VARIABLE}."
        )


def check(measured: MeasuredCard) -> None:
    """Checks that this package knows the card, the release and the rules of a file.

    Raises:
        CardFileError: It does not.
    """
    from lightning_gaudi.simulator.rules import table

    if measured.card not in GAUDIS:
        raise CardFileError(
            f"{measured.path} was measured on a card {measured.card!r}, which is not known here. "
            f"Known are {', '.join(GAUDIS)}: update lightning-gaudi, or unset {VARIABLE}."
        )
    if find_release(measured.release) is None:
        known = ", ".join(each.software for each in RELEASES)
        raise CardFileError(
            f"{measured.path} was measured with release {measured.release!r} of the Gaudi "
            f"software, which is not known here. Known are {known}: update lightning-gaudi, or "
            "unset "
            f"{VARIABLE}."
        )
    known_keys = {rule.key for rule in table.RULES}
    if unknown := sorted(set(measured.rules) - known_keys):
        raise CardFileError(
            f"{measured.path} has measurements of rules that are not known here "
            f"({', '.join(unknown[:3])}). Run `lightning-gaudi verify` again with this version; "
            f"the rules are listed in {_PAGE}."
        )


BUILT_IN = frozenset(
    {
        *("quantized-refused", "sparse-refused", "barrier-waits"),
        *("reduce-bitwise-refused", "reduce-premul-sum-refused", "average-of-integers-refused"),
        *("odd-bytes-all-to-all-refused", "all-gather-coalesced-refused", "recv-from-any-refused"),
    }
)
"""Rules that a simulated card keeps to, whatever was measured: that is how it is built."""


def variable_for(card: str, release: str) -> dict[str, str]:
    """Returns the variable as a process needs it that simulates a card; empty if it cannot follow.

    Who looks at several cards may have measurements of one of them alone.

    Args:
        card: The simulated card's key.
        release: The simulated one.
    """
    try:
        load(card, release)
    except CardFileError:
        return {VARIABLE: ""}
    return {}


def is_followed(rule: Rule) -> bool:
    """Returns whether a simulated card does as was measured of a rule, if that is otherwise."""
    return (
        rule.key not in BUILT_IN
        and rule.verdict not in (Verdict.NOTED, Verdict.UNDEFINED)
        and (not rule.operators[0].startswith("graph::"))
    )


def describe(measured: MeasuredCard) -> list[str]:
    """Returns what of a file is followed, and what is not, a line each."""
    from lightning_gaudi.simulator.rules import table

    changed = [
        rule
        for rule in table.RULES
        for found in measured.rules.get(rule.key, {}).values()
        if not table.is_as_said(rule, found)
    ]
    followed = [rule.key for rule in changed if is_followed(rule)]
    kept = [rule.key for rule in changed if not is_followed(rule)]
    measured_on = "a simulated " if measured.is_simulated else "a "
    lines = [
        f"{measured.path}: measured on {measured_on}{GAUDIS[measured.card].title}, release "
        f"{measured.release}; {len(measured.rules)} rules, "
        f"{len(followed)} of them followed otherwise than the table says"
        + (f": {', '.join(followed)}" if followed else "")
    ]
    if kept:
        lines.append(
            f"A simulated card cannot follow {', '.join(kept)}, and does as the table says there."
        )
    if measured.is_simulated:
        lines.append("Its times are those of the CPU that played the card: no plan takes them.")
    return lines


def memory_of(card: Gaudi) -> MemoryTerms:
    """Returns how the allocator counts by the sources of csrc/runtime/memory_accounting.h."""
    alignment = 128
    num_small, workspace = 6 * 1024, 4 * 2**20
    at_start = alignment + 2 * num_small * alignment + workspace
    return MemoryTerms(alignment, 0, alignment, num_small, at_start, card.memory_bytes)


def set_memory(device: ModuleType, measured: MeasuredCard) -> None:
    """Has the simulated card count memory as was measured, before any is asked for."""
    if (terms := measured.memory) is None:
        return
    device.set_memory_terms(
        terms.alignment_bytes,
        terms.header_bytes,
        terms.small_bytes,
        terms.num_small,
        terms.at_start_bytes + terms.workspace_bytes,
    )
    device.set_memory_limit(terms.limit_bytes)


def end_as_measured(measured: MeasuredCard) -> None:
    """Has this process, which takes its card, end as programs on the measured card did."""
    found = measured.faults
    if found.get("interrupt") == "killed":
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(2))
    if found.get("terminate") == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if found.get("raise") == "hangs":
        atexit.register(_hang)
    if found.get("hang") == "card not free":
        _hold_card_afterwards()
    if found.get("raise_of_one_rank") == "hangs" and os.environ.get("RANK"):
        os._exit = _hang  # by which the plugin ends a rank


def _hang(status: int = 0) -> NoReturn:
    while True:
        time.sleep(3600)


def _hold_card_afterwards() -> None:
    """Leaves a process that holds the card for a while when this one is killed."""
    read, write = os.pipe()
    ready, said = os.pipe()
    subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(read), str(said), str(_HELD_S)],
        env={key: value for key, value in os.environ.items() if key != VARIABLE},
        pass_fds=(read, said),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for descriptor in (read, said):
        os.close(descriptor)
    os.read(ready, 1)
    _say_when_ending(write)


_HOLDER = """if True:
    import os, sys, time, torch
    read, said, seconds = map(int, sys.argv[1:])
    os.write(said, b"1")
    if not os.read(read, 1):  # nothing is said by who is killed
        torch.empty(1, device="hpu")
        time.sleep(seconds)
"""


def _say_when_ending(descriptor: int) -> None:
    exit_now = os._exit

    def exit_and_say(status: int) -> NoReturn:
        os.write(descriptor, b"1")
        exit_now(status)

    os._exit = exit_and_say
    atexit.register(os.write, descriptor, b"1")
