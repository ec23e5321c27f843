"""Finds the line of a YAML file that an error of LightningCLI is about, and what was meant."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lightning_gaudi._core.wording import nearest
from lightning_gaudi.untrusted import printable

_parsing: ContextVar[tuple[Any, Sequence[str] | None]] = ContextVar(
    "_parsing", default=(None, None)
)
"""The parser that the user has called, and its arguments; None stands for the program's own."""

# The messages of jsonargparse 4.35 to 4.53 about an unknown setting: the first is about one on the
# command line, the others about one in a file.
_UNKNOWN = (
    r"nrecognized arguments: (?:\S+ )*?--([^\s=]+)",
    r"does not accept (?:option|nested key) '([^']+)'",
    r"^Option '([^']+)' is not accepted",
    r"^(?:Validation failed: )?[Kk]ey [\"']([^\"']+)[\"'] (?:is not expected|to check)",
)
_SYNTAX = "Problems parsing config"
_VALUE = re.compile(r"[Kk]ey \"([^\"]+)\"")
_CLASS = re.compile(
    r"Problem with given class_path '([^']+)':\s*(.*?)\n\s*(?:- |Given value)", re.DOTALL
)
_PARAMETER = re.compile(r"'([^']+)' is not (?:accepted|expected)")


@contextmanager
def parsing(parser: Any, args: Any) -> Iterator[None]:
    """Notes the arguments of a parser while it parses, unless another one has called it.

    Args:
        parser: The parser of LightningCLI.
        args: The arguments, as `parse_args` takes them.
    """
    if _parsing.get()[0] is not None:
        yield
        return
    token = _parsing.set((parser, args if isinstance(args, (list, tuple)) else None))
    try:
        yield
    finally:
        _parsing.reset(token)


def explain(message: str, parser: Any) -> str:
    """Returns what an error of jsonargparse does not say: the file and line, and what was meant.

    Args:
        message: The message of jsonargparse.
        parser: The parser that raises it.

    Returns:
        A sentence or two. It is empty if nothing is known, or if another parser called this one,
        since that one asks, too.
    """
    if parser is not _parsing.get()[0] and not parser.exit_on_error:
        return ""
    files = _files()
    if _SYNTAX in message:
        return syntax_error(files)
    if found := unknown_setting(message, settings(parser)):
        return found
    place = _place(message, files)
    problem = _CLASS.search(message)
    return f"{place}{instead(problem[1], problem[2]) if problem else ''}".strip()


def syntax_error(files: Iterable[Path] | None = None) -> str:
    """Returns what is wrong in the first file that is not YAML, and where; empty if all are."""
    import yaml  # type: ignore[import-untyped]

    for path in _files() if files is None else files:
        try:
            yaml.compose(path.read_text("utf-8"))
        except yaml.MarkedYAMLError as error:
            mark, begin = error.problem_mark or error.context_mark, error.context_mark
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            context = f" {error.context}" if error.context else ""
            if context and begin and begin is not mark:
                context += f" that begins in line {begin.line + 1}"
            return f"{printable(path)}{where}: {printable(error.problem)}{printable(context)}."
        except RecursionError:
            return f"{printable(path)}: it is nested too deeply."
        except (yaml.YAMLError, ValueError) as error:
            return f"{printable(path)}: {printable(error)}."
        except OSError:  # it was removed meanwhile
            continue
    return ""


def unknown_setting(message: str, known: Sequence[str]) -> str:
    """Returns that there is no such setting, where it stands and what was meant.

    It returns nothing if the message is about something else.

    Args:
        message: The message of jsonargparse.
        known: All settings, such as `trainer.max_epochs`.
    """
    found = next(filter(None, (re.search(each, message) for each in _UNKNOWN)), None)
    if found is None:
        return ""
    name, files = found[1], _files()
    wrong = _first_wrong(name, known)
    sections = {".".join(each.split(".")[: wrong.count(".") + 1]) for each in known}
    close = nearest(name, known) or nearest(wrong, sections)
    where = _where(wrong, files) or _where(name, files)
    return f"There is no setting {name}{where}." + (f" Did you mean {close}?" if close else "")


def instead(path: str, problem: str) -> str:
    """Returns which class or parameter was probably meant by a name that does not exist.

    Args:
        path: The name of the class with its module.
        problem: What jsonargparse says about it.
    """
    module, _, name = path.rpartition(".")
    wrong = _PARAMETER.search(problem)
    try:
        home = importlib.import_module(module)
        if wrong:
            close = nearest(wrong[1], inspect.signature(getattr(home, name)).parameters)
        else:
            close = None if hasattr(home, name) else nearest(name, vars(home))
    except Exception:  # a module that is imported by a wrong name may raise anything
        return ""
    return f" Did you mean {close}?" if close else ""


def settings(parser: Any) -> list[str]:
    """Returns the settings of a parser and of its subcommand, if the arguments name one."""
    found = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
    for action in parser._actions:
        parsers = action.choices if isinstance(action.choices, dict) else {}
        name = next((each for each in _given() if each in parsers), None)
        if name is not None and hasattr(parsers[name], "_actions"):
            found += settings(parsers[name])
    return found


def _place(message: str, files: Sequence[Path]) -> str:
    """Returns where a wrong value, or a parameter of a class, stands in a file."""
    found = _PARAMETER.search(message) or _VALUE.search(message)
    if problem := _CLASS.search(message):
        found = _PARAMETER.search(problem[2]) or found
    where = _where(found[1], files) if found else ""
    return f"It stands in {where[2:-1]}." if where else ""


def _where(name: str, files: Sequence[Path]) -> str:
    """Returns the file and the line of a setting, in parentheses."""
    wanted = name.split(".")
    for path in reversed(files):  # a later file overrides an earlier one
        for keys, line in _keys(path):
            if keys[-len(wanted) :] == wanted:
                return f" ({path}, line {line})"
    return ""


def _keys(path: Path) -> Iterator[tuple[list[str], int]]:
    """Yields all keys of a file with those above them, and their lines."""
    import yaml

    def walk(node: Any, above: list[str]) -> Iterator[tuple[list[str], int]]:
        if isinstance(node, yaml.SequenceNode):
            for each in node.value:
                yield from walk(each, above)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                keys = [*above, *str(key.value).split(".")]
                yield keys, key.start_mark.line + 1
                yield from walk(value, keys)

    try:
        yield from walk(yaml.compose(path.read_text("utf-8")), [])
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return


def _first_wrong(name: str, known: Sequence[str]) -> str:
    """Returns the shortest beginning of a setting's name that no known setting has."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        part = ".".join(parts[:count])
        if not any(each == part or each.startswith(f"{part}.") for each in known):
            return part
    return name


def _given() -> Sequence[str]:
    _, args = _parsing.get()
    return sys.argv[1:] if args is None else [str(each) for each in args]


def _files() -> list[Path]:
    """Returns the files that the arguments name, in their order."""
    given, found = [*_given()], []
    for option, following in zip_longest(given, given[1:], fillvalue=""):
        name, is_one, value = option.partition("=")
        if name in ("-c", "--config") or (name.startswith("--") and name.endswith(".config")):
            found.append(Path(value if is_one else following))
    return [path for path in found if path.is_file()]
