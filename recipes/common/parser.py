"""Shortens the errors of LightningCLI's parser to a line, with the setting that was meant."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from lightning_gaudi import config_errors
from lightning_gaudi.untrusted import shown

_CLASS = re.compile(r"Problem with given class_path '([^']+)':\s*(.*?)\n\s*- ", re.DOTALL)
_DEBUG = "JSONARGPARSE_DEBUG"


class RecipeParser(LightningArgumentParser):
    """LightningCLI's parser, without its list of all settings in front of each error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, and exits with 2."""
        if not self.exit_on_error or os.environ.get(_DEBUG):  # called by a parser around this one
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        options = [option for each in parser._actions for option in each.option_strings]
        said = _explain(message, [option.lstrip("-") for option in options])
        print(f"{program}: error: {shown(said)} See: {program} --help", file=sys.stderr)
        sys.exit(2)


def _explain(message: str, settings: Sequence[str]) -> str:
    """Returns in one or two sentences what jsonargparse says in up to fifteen lines."""
    if said := config_errors.unknown_setting(message, settings):
        return said
    if "Problems parsing config" in message and (said := config_errors.syntax_error()):
        return said
    first, *_ = message.splitlines()
    if found := _CLASS.search(message):
        path, problem = found[1], " ".join(found[2].split())
        return f"{first} {path}: {problem}.{config_errors.instead(path, problem)}"
    said = message.partition("Given value type:")[0]
    _, union, reasons = said.partition("Errors:")
    if union:
        said = f"{first} {reasons}"
    return " ".join(said.split()).rstrip(".") + "."
