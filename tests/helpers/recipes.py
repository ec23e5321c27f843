"""The command line of a recipe, without its loggers, callbacks and progress bar."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "recipes"


def quiet_cli(recipe: str, path: Path, *arguments: str, config: str = "simulated") -> Any:
    """The recipe's data, model and Trainer as a configuration has them; nothing has run.

    Args:
        recipe: folder of the recipe.
        path: where the Trainer writes.
        arguments: overrides, as on the command line.
        config: name of the YAML.
    """
    run = importlib.import_module(f"recipes.{recipe}.__main__").run
    return run(
        [
            *("--config", str(ROOT / recipe / f"{config}.yaml"), "--trainer.logger=false"),
            *("--trainer.callbacks=null", "--trainer.enable_progress_bar=false"),
            *("--trainer.enable_model_summary=false", f"--trainer.default_root_dir={path}"),
            *arguments,
        ],
        run=False,
    )
