"""Errors of LightningCLI's parser, in a line, with the setting that was probably meant."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from lightning_gaudi.cli.catalog import nearest

# What jsonargparse says, from 4.35 to 4.53: on the command line; in a file.
_UNKNOWN = (r"nrecognized arguments: (?:\S+ )*?--([^\s=]+)", r"does not accept option '([^']+)'")
_UNKNOWN += (r"[Kk]ey [\"']([^\"']+)[\"'] (?:is not expected|to check)",)
_CLASS = re.compile(r"Problem with given class_path '([^']+)':\s*(.*?)\n\s*- ", re.DOTALL)
_DEBUG = "JSONARGPARSE_DEBUG"


class RecipeParser(LightningArgumentParser):
    """LightningCLI's parser, without its list of all settings in front of each error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, and exit with 2."""
        if not self.exit_on_error or os.environ.get(_DEBUG):  # a parser within this one asks
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        options = [option for each in parser._actions for option in each.option_strings]
        said = _explain(message, [option.lstrip("-") for option in options])
        print(f"{program}: error: {said} See: {program} --help", file=sys.stderr)
        sys.exit(2)


def _explain(message: str, settings: Iterable[str]) -> str:
    """One or two sentences of what jsonargparse says in up to fifteen lines."""
    for pattern in _UNKNOWN:
        if found := re.search(pattern, message):
            close = nearest(found[1], settings)
            meant = f" Did you mean {close}?" if close else ""
            return f"There is no setting {found[1]}.{meant}"
    first, *_ = message.splitlines()
    if found := _CLASS.search(message):
        path, problem = found[1], " ".join(found[2].split())
        return f"{first} {path}: {problem}.{_instead(path, problem)}"
    said = message.partition("Given value type:")[0]
    _, union, reasons = said.partition("Errors:")
    if union:
        said = f"{first} {reasons}"
    return " ".join(said.split()).rstrip(".") + "."


def _instead(path: str, problem: str) -> str:
    """What was probably meant by a name of a class, or of a parameter of it, that is not there."""
    module, _, name = path.rpartition(".")
    wrong = re.search(r"'([^']+)' is not accepted", problem)
    try:
        home = importlib.import_module(module)
        if wrong:
            close = nearest(wrong[1], inspect.signature(getattr(home, name)).parameters)
        else:
            close = None if hasattr(home, name) else nearest(name, vars(home))
    except (ImportError, AttributeError, ValueError):
        return ""
    return f" Did you mean {close}?" if close else ""
