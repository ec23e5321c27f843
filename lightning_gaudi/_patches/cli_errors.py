"""What LightningCLI says of a wrong configuration: with the file, the line, and what was meant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .apply import wrap

_ERRORS = "lightning_gaudi.config_errors"
_MAX_CHARS = 100_000


def patch_parser(module: ModuleType, family: Any) -> None:
    """Adds them to the errors of LightningCLI's parser, where there is an HPU.

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
        from lightning_gaudi._core.untrusted import printable

        said = importlib.import_module(_ERRORS).explain(message, self)
        if said and vendor.is_available():
            message = f"{message.rstrip()}\n{said}"
        if vendor.is_available():  # keys and values are a file's, and may move the cursor
            message = printable(message, max_chars=_MAX_CHARS, lines=True)
        return original(self, message, ex)
