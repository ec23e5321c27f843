"""A LightningCLI's configuration is planned without a program, if it names its classes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.process import run

CLASSES = """
import lightning.pytorch as pl, torch
from lightning.pytorch.cli import LightningCLI


class Net(pl.LightningModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Noise(pl.LightningDataModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(64, self.width), batch_size=16)


if __name__ == "__main__":
    LightningCLI()
"""
MODEL = """
model:
  class_path: classes.Net
  init_args: {width: 512}
"""
DATA = """
data:
  class_path: classes.Noise
  init_args: {width: 512}
"""


def _plan(folder: Path, *arguments: str, check: bool = True) -> tuple[str, str]:
    (folder / "classes.py").write_text(CLASSES)
    command = (
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "plan",
        "--cards=gaudi2",
        *arguments,
    )
    done = run(command, cwd=folder, timeout=120, check=check)
    assert done.returncode == (0 if check else 2), done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        MODEL + DATA,
        pytest.param(
            "fit:" + (MODEL + DATA).replace("\n", "\n  "), marks=pytest.mark.slow, id="of-a-command"
        ),
    ],
)
def test_a_configuration_is_planned_as_its_program_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (found,) = json.loads(_plan(tmp_path, "--json", "config.yaml")[0])
    assert found["rehearsed"]["batch_size"] == 16
    assert found["rehearsed"]["categories"]["weights"] == 4 * (512 * 512 + 512)
    program = (sys.executable, "classes.py")
    arguments = (
        ["fit", "--config=config.yaml"]
        if text.startswith("\nmodel")
        else ["--config=config.yaml", "fit"]
    )
    (same,) = json.loads(_plan(tmp_path, "--json", "--", *program, *arguments)[0])
    assert found == same
    assert {path.name for path in tmp_path.iterdir()} <= {
        "classes.py",
        "config.yaml",
        "__pycache__",
    }


@pytest.mark.slow_but("no class")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DATA + "model: {width: 512}", "has no `class_path`. Plan the program that reads it"),
        (DATA + MODEL.replace("Net", "Nett"), "config.yaml, line 6. Did you mean Net?"),
        pytest.param(MODEL + "data: [", "line 6, column 1", marks=pytest.mark.slow),
    ],
    ids=["no class", "wrong class", "no YAML"],
)
def test_a_wrong_configuration_is_explained(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert message in _plan(tmp_path, "config.yaml", check=False)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.yaml",), "there is no file none.yaml"),
        (("classes.py", "--", "python", "classes.py"), "there is one program to plan"),
    ],
)
def test_a_file_that_is_not_there_and_two_programs_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in _plan(tmp_path, *arguments, check=False)[1]
