"""What LightningCLI says of a wrong configuration: with the file, the line, and what was meant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .apply import wrap

_ERRORS = "lightning_gaudi.cli.config_errors"


def patch_parser(module: ModuleType, family: Any) -> None:
    """Add them to the errors of LightningCLI's parser, where there is an HPU.

    Args:
        module: Lightning's, with the parser.
        family: Not used.
    """
    parser = module.LightningArgumentParser
    if not hasattr(parser, "parse_args"):  # jsonargparse is not installed
        return

    @wrap("cli-errors", parser, "parse_args")
    def parse_args(
        original: Callable[..., Any], self: Any, args: Any = None, *rest: Any, **options: Any
    ) -> Any:
        with importlib.import_module(_ERRORS).parsing(self, args):
            return original(self, args, *rest, **options)

    @wrap("cli-errors", parser, "error")
    def error(
        original: Callable[..., Any], self: Any, message: str, ex: Exception | None = None
    ) -> Any:
        from lightning_gaudi._core import vendor

        said = importlib.import_module(_ERRORS).explain(message, self)
        if said and vendor.is_available():
            message = f"{message.rstrip()}\n{said}"
        return original(self, message, ex)
