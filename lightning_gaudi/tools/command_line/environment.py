"""Sets the environment variables that a configuration asks for, before torch is imported.

The vendor's package reads its switches once, when it is imported: whether operators gather in a
graph, which of them run in bfloat16. So a YAML file may have a mapping `environment` of names to
values. The process that starts a recipe sets them first, and the ranks inherit them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_gaudi._core.precision import autocast_ops
from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.tools.command_line import catalog, environment_names
from lightning_gaudi.untrusted import printable

KEY = "environment"
"""The key of a YAML file, and the option of a recipe's command line."""
_MAX_LIST_BYTES = 1 << 20
_MAX_NAME = 200


def set_environment(arguments: Sequence[str]) -> list[str]:
    """Sets what configurations and options ask for, but nothing where help or settings are shown.

    What is typed counts first, then what the environment has already, then the last of the files,
    as in LightningCLI.

    Args:
        arguments: The arguments of a recipe, with paths behind `--config`.

    Returns:
        The arguments, followed by an option with what was set, so that it is saved with the
        settings of the run.

    Raises:
        UsageError: A name or value cannot be meant, a file is not there, or torch has been
            imported while a variable had another value.
    """
    if catalog.only_shows(arguments):
        return list(arguments)
    wanted, typed, origin = _read(arguments)
    for name, value in {**wanted, **typed}.items():
        _check(name, value, "the command line" if name in typed else origin)
    effective: dict[str, str] = {}
    for name, value in wanted.items():
        theirs = os.environ.get(name)
        effective[name] = str(value) if theirs is None else theirs
        if theirs not in (None, _actual(name, str(value))) and name not in typed:
            _say(f"{name} is {theirs} in your environment, which comes before {value} in {origin}.")
    effective |= {name: str(value) for name, value in typed.items()}
    for name, value in effective.items():
        _set(name, value)
    return [*arguments, f"--{KEY}={json.dumps(effective)}"] if effective else list(arguments)


def _read(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns what the last file with the key asks for, what is typed, and the file's name."""
    wanted: dict[str, Any] = {}
    typed: dict[str, Any] = {}
    origin = ""
    for option, text in catalog.options(arguments):
        if option in catalog.CONFIG_OPTIONS and "://" not in text:
            found = _of_file(text)
            if found is not None:
                wanted, origin = found, f"--config {text}"
        elif option == f"--{KEY}":
            wanted, typed = {}, _mapping(_parsed(text, option), option)
        elif option.startswith(f"--{KEY}."):
            typed[option.partition(".")[2]] = text
    return wanted, {name: _absolute(name, value, Path()) for name, value in typed.items()}, origin


def _parsed(text: str, option: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise catalog.UsageError(
            f"{option}={printable(text, max_chars=200)} is no YAML "
            f"({printable(error, max_chars=200)}). Pass a mapping such as PT_HPU_LAZY_MODE: 1."
        ) from error


def _of_file(text: str) -> dict[str, Any] | None:
    """Returns the mapping of a file or of inline settings; its paths are relative to the file."""
    import yaml

    path = None if catalog.is_inline(text) else Path(text)
    try:
        settings = yaml.safe_load(path.read_text("utf-8") if path else text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        # The parser of the recipe's command line reads the file later, and says what is wrong.
        return None
    if not isinstance(settings, dict) or KEY not in settings:
        return None
    found = _mapping(settings[KEY], f"{KEY} of --config {text}")
    folder = path.resolve().parent if path else Path()
    return {name: _absolute(name, value, folder) for name, value in found.items()}


def _mapping(value: Any, origin: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        shown = printable(repr(value), max_chars=200)
        raise catalog.UsageError(
            f"{printable(origin)} is {shown}, but should be a mapping of environment variables to "
            "values, as in PT_HPU_LAZY_MODE: 1."
        )
    return {str(name): each for name, each in value.items()}


def _absolute(name: str, value: Any, folder: Path) -> Any:
    is_file = name in autocast_ops.VARIABLES and isinstance(value, str) and value
    return str((folder / value).resolve()) if is_file else value


def _check(name: str, value: Any, origin: str) -> None:
    """Refuses a variable that nothing reads, that a file may not set, or with a wrong value."""
    where = f"{KEY}.{printable(name, max_chars=200)} of {printable(origin)}"
    if name not in environment_names.VALUES and (meant := vendor_names.misspelt_flag(name)):
        raise catalog.UsageError(f"{where} is not read by anything. Did you mean {meant}?")
    if reason := environment_names.why_refused(printable(name, max_chars=200)):
        raise catalog.UsageError(f"{where} {reason}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        shown = printable(json.dumps(value, default=repr), max_chars=200)
        raise catalog.UsageError(
            f"{where} is {shown}, but should be a string or a number, as in {name}: 1."
        )
    # A value that the environment has already is the user's, and not the file's doing.
    is_there = os.environ.get(name) == str(value)
    if not is_there and (reason := environment_names.why_wrong(name, str(value))):
        raise catalog.UsageError(f"{where}={printable(value, max_chars=200)} {reason}")
    if name in autocast_ops.VARIABLES and value and not Path(str(value)).is_file():
        raise catalog.UsageError(
            f"{where}={printable(value)} does not exist. Name a file of operators, one a line; a "
            "path is relative to the YAML file that it stands in."
        )


def _set(name: str, value: str) -> None:
    actual = _actual(name, value)
    if "torch" in sys.modules and os.environ.get(name) != actual:
        raise catalog.UsageError(
            f"{KEY}.{name}={value} has to be set before torch is imported, which this process has "
            "done. Run the recipe as a program of its own."
        )
    os.environ[name] = actual


def _actual(name: str, value: str) -> str:
    """Returns the value, or the path of a copy where the vendor's package would not read a file.

    It reads none below /usr or /root, where packages are installed in the vendor's containers.
    """
    path = Path(value)
    if name not in autocast_ops.VARIABLES or not value or autocast_ops.is_read_from(path):
        return value
    for folder in (Path(tempfile.gettempdir()), Path("/tmp")):
        if autocast_ops.is_read_from(folder / path.name):
            return str(_copy(path, folder))
    raise catalog.UsageError(
        f"{name}={value}: the vendor's package reads no file there, nor in "
        f"{tempfile.gettempdir()}. Copy it to a folder below /home, and name that one."
    )


def _copy(path: Path, folder: Path) -> Path:
    """Returns the path of a copy of a list of operators, made if it is not there.

    Raises:
        UsageError: It is no list of operators, or the copy's name is taken by another user's file.
    """
    content = _operators(path)
    # Many ranks may make the copy at once: its name says what is in it, and a rename puts it there,
    # so whichever comes last leaves the same file.
    digest = hashlib.sha256(content).hexdigest()[:16]
    copy = folder / f"lightning_gaudi_{os.geteuid()}_{digest}.txt"
    if not _is_own_copy(copy, content):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        try:
            Path(file.name).replace(copy)
        except OSError as error:
            Path(file.name).unlink()
            raise catalog.UsageError(
                f"{copy}, a copy of {path}, cannot be written: {error.strerror or error}. Another "
                "user may have made a file of that name. Remove it, or copy the list to a folder "
                "below /home, and name that."
            ) from error
    return copy


def _operators(path: Path) -> bytes:
    """Returns the content of a list of operators, after checking that it is one.

    The copy lies in a folder of all users, where no other file of this user's may end up.
    """
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise catalog.UsageError(
            f"{path} is no list of operators: it has {path.stat().st_size} bytes."
        )
    content = path.read_bytes()
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = [""]
        content = b"\0"
    if b"\0" in content or any(len(line) > _MAX_NAME or " " in line.strip() for line in lines):
        raise catalog.UsageError(
            f"{path} is no list of operators, which has one name a line. Name another file."
        )
    return content


def _is_own_copy(copy: Path, content: bytes) -> bool:
    """Returns whether the copy is there, and only this user can have written it."""
    try:
        descriptor = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        return stat.S_ISREG(found.st_mode) and is_own and file.read(_MAX_LIST_BYTES) == content


def _say(message: str) -> None:
    # Lightning starts the other ranks with the same command line: one of them says it.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"lightning-gaudi: {printable(message)}", file=sys.stderr)
