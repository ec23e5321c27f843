"""What a file or another process says, before anybody prints it, follows it or computes with it.

Whoever wrote it may be somebody else: its text may move a terminal's cursor, its names may lead out
of the folder, its numbers may be of another type than ours.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of what a terminal obeys, reorders or does not show."""

_MAX_DEPTH = 100
"""How deep dicts and lists may lie in each other; no file of ours has more than ten levels."""


def printable(text: object, *, max_chars: int = 2000, lines: bool = False) -> str:
    """Returns a text in which nothing moves the cursor, begins a line or hides what follows.

    Args:
        text: What is to be shown, as `str` has it.
        max_chars: How many characters are kept; of a longer one the number of the rest is said.
        lines: Whether it may have lines and tabs of its own, as a stack has.
    """
    shown = str(text)
    rest, shown = len(shown) - max_chars, shown[:max_chars]
    kept = "\n\t" if lines else ""
    shown = "".join(
        each if each in kept or unicodedata.category(each) not in _INVISIBLE else _escaped(each)
        for each in shown
    )
    return f"{shown}... ({rest} characters more)" if rest > 0 else shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def path_inside(folder: Path, name: object) -> Path:
    """Returns the path of a name that a file in this folder holds, if it is in this folder.

    Args:
        folder: Where the name must lead to; it may itself be a symbolic link.
        name: A relative path with `/` between its parts.

    Raises:
        ValueError: It is no such name, or it or a symbolic link leads out of the folder.
    """
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 4096:
        raise ValueError(f"{printable(repr(name), max_chars=200)} is not the name of a file.")
    parts = PurePosixPath(name)
    path = folder / parts
    try:
        leaves = parts.is_absolute() or ".." in parts.parts or not parts.parts
        leaves = leaves or not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a link to itself, a name too long, no text
        leaves = True
    if leaves:
        shown = printable(repr(name), max_chars=200)
        raise ValueError(f"{shown} is not a file within {printable(folder)}.")
    return path


def parse_json(data: bytes | str) -> Any:
    """Returns what a text in JSON says.

    Raises:
        ValueError: It is no JSON, is nested too deeply, or has a number that is not finite.
    """
    try:
        found = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("It is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"It is no JSON: {printable(error, max_chars=200)}") from error
    check_depth(found)
    return found


def check_depth(value: object) -> None:
    """Refuses what is nested so deeply that a function which calls itself for each level may fail.

    Since Python 3.12 `json` reads more levels than a function may call itself.

    Args:
        value: What a file says: dicts and lists; of YAML the same one may be in several places.

    Raises:
        ValueError: It is nested too deeply.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = {id(each): each for found in level for each in _contents(found)}
        level = list(inner.values())
        if not level:
            return
    raise ValueError("It is nested too deeply.")


def _contents(found: object) -> Iterable[object]:
    if isinstance(found, dict):
        return found.values()
    return found if isinstance(found, list) else ()


def _finite(text: str) -> float:
    found = float(text)
    if found in (float("inf"), float("-inf")):
        _refuse(text)
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{printable(text, max_chars=50)} is not a finite number.")
