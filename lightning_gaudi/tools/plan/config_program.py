"""Runs what the configuration of a LightningCLI names, as a program; see `command_line.plan`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_COMMANDS = ("fit", "validate", "test", "predict")


def main(path: Path, more: Sequence[str] = ()) -> None:
    """Runs the command of a LightningCLI's configuration, or `fit` if it names none.

    Args:
        path: The configuration.
        more: Settings that override those of the configuration.

    Raises:
        SystemExit: It does not name its model; the message says what to do.
    """
    text = path.read_text("utf-8", errors="replace")  # the LightningCLI says what is no UTF-8
    given = _read(text)
    command = next((name for name in _COMMANDS if name in given), None)
    settings = given if command is None else given[command]
    model = settings.get("model") if isinstance(settings, dict) else None
    is_named = isinstance(model, str) or (isinstance(model, dict) and "class_path" in model)
    if given and not is_named:
        sys.exit(
            f"{path} does not say whose model it configures: `model` has no `class_path`. Plan the "
            f"program that reads it: lightning-gaudi plan -- python PROGRAM fit --config {path}"
        )
    library = "pytorch_lightning" if "pytorch_lightning." in text else "lightning.pytorch"
    file = ["--config", str(path)]
    arguments = ["fit", *file, *more] if command is None else [*file, command, *more]
    import_module(f"{library}.cli").LightningCLI(args=arguments, save_config_callback=None)


def _read(text: str) -> dict[str, Any]:
    """Returns the settings of a text; none if it is damaged, which the LightningCLI will report."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
