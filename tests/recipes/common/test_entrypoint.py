"""What a recipe says before anything slow is imported, and how its mistakes end."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import recipes.mrpc.__main__
from recipes.common import entrypoint
from recipes.common.errors import UserError
from tests.helpers.process import run_python

FILE = recipes.mrpc.__main__.__file__
CONFIG = str(Path(FILE).with_name("simulated.yaml"))
FIT = ("fit", "--config=simulated")


def _end(run: Any, *arguments: str) -> Any:
    """The status with which a command ends, whose work is `run`."""
    with pytest.raises(SystemExit) as ended:
        entrypoint.main(FILE, run, arguments, "lightning-gaudi run mrpc")
    return ended.value.code


def _raising(error: BaseException) -> Any:
    def run(arguments: list[str], program: str) -> None:
        raise error

    return run


def test_help_names_commands_and_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    entrypoint.main(FILE, None, ["--help"])  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m recipes.mrpc COMMAND --config NAME")
    for word in ("fit", "validate", "test", "predict", "export", "simulated"):
        assert f"\n  {word} " in shown
    assert re.search(r"\n  published/gaudi_8x +Fine-tune BERT-large", shown)
    assert f"What the recipe does, and how: {Path(FILE).with_name('README.md')}" in shown


def test_help_imports_nothing_that_is_slow() -> None:
    source = """
        import sys
        from recipes.bert_pretraining.__main__ import main
        main(["--help"])
        print({"torch", "lightning", "transformers", "numpy", "yaml"} & set(sys.modules))
    """
    root = {"PYTHONPATH": str(Path(FILE).parents[2])}
    assert run_python(source, env=root).stdout.endswith("\nset()\n")


def test_names_of_configurations_become_paths() -> None:
    found: list[Any] = []

    def run(arguments: list[str], program: str) -> None:
        found.extend([arguments, program])

    entrypoint.main(FILE, run, ["fit", "--config", "simulated", "--data.seed=1"])
    assert found == [["fit", "--config", CONFIG, "--data.seed=1"], "python -m recipes.mrpc"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No command. There are: fit, validate, test, predict, export."),
        (["exprot"], "There is no command 'exprot'. Did you mean export? There are: fit,"),
        (["fit", "-c", "gaudi_2x"], "--config gaudi_2x does not exist, and is none of mrpc's"),
        (["fit"], "No configuration. Add --config with a name or the path of a YAML file. There"),
        (["--seed_everything=1", "test"], "No configuration. Add --config with a name"),
    ],
)
def test_wrong_words_are_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _end(None, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lightning-gaudi run mrpc: error: {message}")
    assert error.count("\n") == 1


def test_a_mistake_of_the_user_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _end(_raising(UserError("data.path=x is no folder.")), *FIT) == 2
    said = "lightning-gaudi run mrpc: error: data.path=x is no folder.\n"
    assert capsys.readouterr().err == said


def test_a_checkpoint_that_is_not_there_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", str(tmp_path / "no.ckpt"), "--output", str(tmp_path / "x")]
    assert _end(None, "export", *words) == 2
    said = f"lightning-gaudi run mrpc: error: --checkpoint {tmp_path / 'no.ckpt'} does not exist."
    assert capsys.readouterr().err.startswith(said)


def test_ctrl_c_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _end(_raising(KeyboardInterrupt()), *FIT) == 130
    assert capsys.readouterr().err == "lightning-gaudi run mrpc: interrupted\n"


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug"), RuntimeError("a bug"), ModuleNotFoundError("a bug", name="wandb")],
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match="a bug"):
        entrypoint.main(FILE, _raising(error), FIT)


def test_a_package_of_the_extra_that_is_absent_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = "which is not installed. Run: pip install 'lightning-gaudi[recipes]'\n"
    # It is there, so what it lacks is not for pip to install.
    inner = ModuleNotFoundError("a bug", name="sklearn.svm")
    with pytest.raises(ModuleNotFoundError, match="a bug"):
        entrypoint.main(FILE, _raising(inner), FIT)
    find_spec = importlib.util.find_spec
    absent = {"sklearn", "tensorboard"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    assert _end(None, *FIT) == 2
    assert capsys.readouterr().err.endswith(f"need the package tensorboard, {install}")
    absent.remove("tensorboard")
    assert _end(_raising(inner), *FIT) == 2
    assert capsys.readouterr().err.endswith(f"need the package sklearn, {install}")
