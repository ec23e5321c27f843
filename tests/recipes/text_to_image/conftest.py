from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.diffusion import KINDS, save_pipeline
from tests.helpers.recipes import quiet_cli

# diffusers 0.42 with numpy 2 (scheduling_dpmsolver_multistep.py).
WARNINGS = "ignore:__array__ implementation doesn't:DeprecationWarning"
SMALL = (
    *("--model.unet_widths=[8,16]", "--model.text_width=16", "--model.num_inference_steps=2"),
    *("--data.batch_size=16", "--data.eval_batch_size=30", "--data.num_generated=1"),
)
"""A model that is small enough to train for some steps."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models in diffusers' layout, by kind."""
    return {kind: save_pipeline(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture
def make_cli(tmp_path: Path) -> Any:
    """Builds the recipe's data, model and Trainer, on the CPU if nothing else is said."""

    def make(*arguments: str) -> Any:
        given = [f"--trainer.accelerator={'cpu'}", *SMALL, *arguments]
        return quiet_cli("text_to_image", tmp_path, *given)

    return make
