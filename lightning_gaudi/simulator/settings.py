"""What the environment asks of the simulator, read without importing torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lightning_gaudi import releases
from lightning_gaudi.hardware import GAUDIS, Gaudi
from lightning_gaudi.releases import Release

SIMULATE = "LIGHTNING_GAUDI_SIMULATE"
CARD = "LIGHTNING_GAUDI_SIMULATE_CARD"
RELEASE = "LIGHTNING_GAUDI_SIMULATE_RELEASE"
RULES = "LIGHTNING_GAUDI_SIMULATE_RULES"
EXEMPT = "LIGHTNING_GAUDI_SIMULATE_RULES_EXEMPT"
SERVER = "LIGHTNING_GAUDI_SIMULATE_SERVER"
DRY = "LIGHTNING_GAUDI_SIMULATE_DRY"
WORKSPACE = "PT_HPU_INITIAL_WORKSPACE_SIZE"
CACHE_DIR = "LIGHTNING_GAUDI_CACHE_DIR"

# A server's name that `_made_up_name` gave, and not the user.
_MADE_UP = re.compile(r"\d+-[0-9a-f]{8}")

RULE_MODES = ("warn", "error", "off")
"""What LIGHTNING_GAUDI_SIMULATE_RULES may be, the default first."""

MAX_CARDS = 8
"""Cards of a Gaudi server, of each generation."""

STAND_IN = Path(__file__).parent / "stand_in"
"""The folder with the simulator's `habana_frameworks`; on `sys.path` only while simulating."""


class SimulatorError(RuntimeError):
    """The simulated HPU was asked for and cannot be had; the message says what to do."""


Card = Gaudi
"""A card that can be simulated; its memory is the default memory limit."""

CARDS = GAUDIS
"""The cards by key, which is the value of LIGHTNING_GAUDI_SIMULATE_CARD."""


_SIMULATED = ("1.20", "1.22", "1.24.1")
RELEASES = {each.key: each for each in releases.RELEASES if each.software in _SIMULATED}
"""The releases whose Python package can stand in, the newest last, each by the value that
LIGHTNING_GAUDI_SIMULATE_RELEASE has for it."""


@dataclass(frozen=True)
class Settings:
    """The simulated server that the environment describes."""

    num_cards: int
    card: Card
    release: Release
    is_dry: bool = False
    """Whether tensors on the card have sizes and no values, and the other ranks are not there."""


def server_name() -> str:
    """Returns the name of the simulated server whose cards this process shares with others.

    Without LIGHTNING_GAUDI_SIMULATE_SERVER the name is made up, once a run.
    """
    # The variable is set for the processes that this one starts: ranks share a server with their
    # launcher, and two runs at a time do not take each other's cards.
    return os.environ.setdefault(SERVER, _made_up_name())


def name_of_new_server() -> str:
    """Returns the name of the server for a command that says how many cards it wants.

    It is the user's name, or a new one.
    """
    # A made-up name was inherited from a parent that simulates, too, such as the notebook from
    # which the command was typed: the cards of its server may be taken, and their number differs.
    name = os.environ.get(SERVER, "")
    return _made_up_name() if not name or _MADE_UP.fullmatch(name) else name


def _made_up_name() -> str:
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def path_with_stand_in() -> str:
    """Returns `PYTHONPATH` for programs that are to find the simulator's `habana_frameworks`."""
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(STAND_IN))))


def is_requested() -> bool:
    """Returns whether the environment asks for the simulator; an empty value does not."""
    return bool(os.environ.get(SIMULATE))


def read_settings() -> Settings:
    """Reads the simulated server from the environment.

    Raises:
        SimulatorError: A value is missing or out of range.
    """
    value = os.environ.get(SIMULATE, "")
    if not value:
        raise SimulatorError(
            f"The simulated HPU was not asked for: {SIMULATE} is not set. Set it to the number of "
            f"cards, 1 to {MAX_CARDS}, before torch is imported, or start the program with "
            "`lightning-gaudi simulate -- command`."
        )
    return Settings(
        num_cards=_parse_num_cards(value),
        card=read_card(),
        release=read_release(),
        is_dry=is_switched_on(os.environ.get(DRY, "")),
    )


def read_card() -> Card:
    """Returns the card that the environment names, a Gaudi 2 by default.

    Raises:
        SimulatorError: LIGHTNING_GAUDI_SIMULATE_CARD names no known card.
    """
    key = os.environ.get(CARD) or "gaudi2"
    if key not in CARDS:
        raise SimulatorError(f"{CARD}={key!r} is no card. Set it to one of {', '.join(CARDS)}.")
    return CARDS[key]


def read_release() -> Release:
    """Returns the release that the environment names, the newest by default.

    Raises:
        SimulatorError: LIGHTNING_GAUDI_SIMULATE_RELEASE names no release that can be simulated.
    """
    key = os.environ.get(RELEASE) or list(RELEASES)[-1]
    if key not in RELEASES:
        raise SimulatorError(
            f"{RELEASE}={key!r} is no release that can be simulated. Set it to one of "
            f"{', '.join(RELEASES)}."
        )
    return RELEASES[key]


def read_rule_mode() -> str:
    """Returns how findings about the card's rules are reported: "warn", "error" or "off".

    Raises:
        SimulatorError: LIGHTNING_GAUDI_SIMULATE_RULES is none of these.
    """
    mode = os.environ.get(RULES) or RULE_MODES[0]
    if mode not in RULE_MODES:
        raise SimulatorError(
            f"{RULES}={mode!r} is unknown. Set it to one of {', '.join(RULE_MODES)}."
        )
    return mode


def read_exempt() -> frozenset[str]:
    """Returns the keys of rules and the names of modules about which nothing is reported."""
    names = os.environ.get(EXEMPT, "").split(",")
    return frozenset(filter(None, map(str.strip, names)))


def read_workspace_bytes() -> int:
    """Returns the first size of the workspace that all graphs share, in bytes.

    The vendor's variable PT_HPU_INITIAL_WORKSPACE_SIZE gives it in GiB. With it a program can be
    tried beside graphs that take as much on a card. Without it, or with 0, the size is 4 MiB.
    Source: Gaudi PyTorch bridge 1.19.0, backend/synapse_helpers/device.cpp, scripts/env_flags.yaml.

    Raises:
        SimulatorError: The variable is not a number.
    """
    value = os.environ.get(WORKSPACE) or "0"
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise SimulatorError(
            f"{WORKSPACE}={value!r} is no number of GiB. Set it to what the workspace of graphs is "
            "to take of the card from the start, or unset it for 4 MiB."
        )
    return int(value) * 2**30 or 4 * 2**20


def is_switched_on(value: str) -> bool:
    """Returns whether the value of one of the vendor's switches means yes."""
    return value.lower() in ("1", "true", "yes", "on", "y", "t")


def cache_dir() -> Path:
    """Returns where builds are kept: LIGHTNING_GAUDI_CACHE_DIR, or a folder in the user's cache."""
    if value := os.environ.get(CACHE_DIR):
        return Path(value).absolute()
    # `Path.expanduser` raises where the user has no home, as in some containers.
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "lightning_gaudi"  # noqa: PTH111


def _parse_num_cards(value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= MAX_CARDS:
        return int(value)
    raise SimulatorError(
        f"{SIMULATE}={value!r} is no number of cards. Set it to an integer from 1 to {MAX_CARDS}, "
        "the cards of one server, or unset it to run without the simulator."
    )
