"""`lightning-gaudi run`: which recipe, which file, and when the simulator is started for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from _lightning_gaudi_autoload import SimulatorDidNotStartError
from lightning_gaudi.tools.command_line import catalog, main, run as command
from tests.helpers.process import run

ROOT = Path(__file__).parents[3]
SIMULATE = "LIGHTNING_GAUDI_SIMULATE"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], str]]:
    """Module, arguments and program of each recipe that is run, in an empty folder."""
    found: list[tuple[str, list[str], str]] = []

    def imported(name: str) -> Any:
        assert sys.path[0] == str(ROOT)
        return SimpleNamespace(main=lambda args, program: found.append((name, args, program)))

    monkeypatch.setattr(command, "importlib", SimpleNamespace(import_module=imported))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(SIMULATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.activation, "refuse_vendor", lambda asking: None)
    return found


def _file(recipe: str, name: str) -> str:
    return str(ROOT / "recipes" / recipe / f"{name}.yaml")


def test_all_words_go_to_the_recipe(ran: list[Any]) -> None:
    words = ["predict", "--config", "published/gaudi_1x", "--trainer.logger", "false"]
    words += ["--", "--help"]
    assert main(["run", "mrpc", *words]) == 0
    words[2] = _file("mrpc", "published/gaudi_1x")
    assert ran == [("recipes.mrpc.__main__", words, "lightning-gaudi run mrpc")]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--config", "simulated"], "simulated"),
        (["-c", "simulated.yaml"], "simulated"),
        (["--config=simulated"], "simulated"),
        (["--config", "published/t5_3b_fp32_8x"], "published/t5_3b_fp32_8x"),
        (["--config=published/t5_3b_fp32_8x.yaml"], "published/t5_3b_fp32_8x"),
    ],
)
def test_a_name_is_the_recipes_own_file(ran: list[Any], words: list[str], name: str) -> None:
    main(["run", "t5_summarization", "fit", *words])
    assert _file("t5_summarization", name) in " ".join(ran[0][1])


def test_a_file_of_the_user_comes_before_a_name(ran: list[Any], tmp_path: Path) -> None:
    (tmp_path / "simulated.yaml").write_text("trainer: {accelerator: hpu, devices: 4}\n")
    main(["run", "mrpc", "fit", "--config", "simulated.yaml", "--config", "{seed_everything: 1}"])
    assert ran[0][1] == [*("fit", "--config", "simulated.yaml", "--config", "{seed_everything: 1}")]
    assert os.environ[SIMULATE] == "4"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("simulatd", "Did you mean simulated? There are: simulated, published/gaudi2_8x, "),
        ("recipes/mrpc/simulated.yaml", "Did you mean simulated?"),
        ("gaudi_1x", "Did you mean published/gaudi_1x?"),
        ("mine.yaml", "published/gaudi_8x, packed_1x, packed_8x."),
    ],
)
def test_a_configuration_that_is_not_there_is_a_line(
    ran: list[Any], value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "mrpc", "fit", "--config", value]) == 2
    error = capsys.readouterr().err
    said = f"lightning-gaudi: --config {value} does not exist, and is none of mrpc's configurations"
    assert error.startswith(said)
    assert message in error
    assert error.count("\n") == 1
    assert ran == []


@pytest.mark.parametrize(
    ("words", "cards"),
    [
        (["--config", "simulated"], "1"),
        (["--config=simulated", "--trainer.devices=2"], "2"),
        (["--trainer.devices", "2", "--config", "simulated"], "1"),  # the file comes after it
        (["-c", "simulated", "--trainer.devices", "[0, 3]"], "4"),
        (["-c", "simulated", "--trainer.devices", "1,2"], "3"),
        (["-c", "simulated", "--trainer.devices=auto"], "1"),
        (["-c", "simulated", "--trainer.devices=-1"], "1"),
        (["-c", "simulated", "--trainer.devices=12"], "8"),
        (["-c", "simulated", "--trainer.accelerator=auto"], "1"),
        (["-c", "simulated", "--trainer.accelerator=cpu"], None),
        (["-c", "simulated", "--trainer.accelerator", "gpu"], None),
        (["-c", "simulated", "--help"], None),
        (["-c", "simulated", "--print_config=skip_null"], None),
        (["-c", "published/gaudi_1x"], None),
        ([], None),
    ],
)
def test_simulated_configurations_ask_for_their_cards(
    ran: list[Any], words: list[str], cards: str | None
) -> None:
    main(["run", "mrpc", "fit", *words])
    assert os.environ.get(SIMULATE) == cards
    assert len(ran) == 1


def test_the_environment_says_what_is_simulated(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATE, "3")
    main(["run", "mrpc", "fit", "--config", "simulated"])
    assert os.environ[SIMULATE] == "3"


def test_beside_the_vendors_package_nothing_is_simulated(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "habana_frameworks").mkdir()
    (tmp_path / "habana_frameworks" / "__init__.py").touch()
    monkeypatch.undo()
    monkeypatch.delenv(SIMULATE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert command._num_simulated_cards(["--config", _file("mrpc", "simulated")]) == 0
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert command._num_simulated_cards(["--config", _file("mrpc", "simulated")]) == 1


def test_a_copy_in_this_folder_is_mentioned(
    ran: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["copy", "mrpc"])
    main(["run", "mrpc", "--help"])
    error = capsys.readouterr().err
    assert "runs mrpc as it is installed. For yours in recipes/mrpc: python -m recipes." in error
    monkeypatch.chdir(ROOT)
    main(["run", "mrpc", "--help"])
    assert capsys.readouterr().err == ""


def test_a_simulator_that_does_not_start_is_a_line(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: Any, program: str) -> None:
        raise SimulatorDidNotStartError("no C++ compiler was found. Install one.")

    module = SimpleNamespace(import_module=lambda name: SimpleNamespace(main=fails))
    monkeypatch.setattr(command, "importlib", module)
    assert main(["run", "mrpc", "fit", "--config", "simulated"]) == 2
    assert capsys.readouterr().err == "lightning-gaudi: no C++ compiler was found. Install one.\n"


def test_without_recipes_the_installation_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        catalog, "__file__", str(tmp_path / "lightning_gaudi" / "tools" / "command_line" / "x.py")
    )
    assert main(["recipes"]) == 2
    assert "has come without its recipes. Install" in capsys.readouterr().err


@pytest.mark.slow
def test_two_cards_train_from_an_empty_folder(tmp_path: Path) -> None:
    words = ["run", "mrpc", "fit", "--config=simulated", "--trainer.devices=2"]
    words += ["--trainer.max_steps=2", "--trainer.limit_val_batches=1", "--data.packages=[]"]
    words += ["--data.pairs_per_sentence=1", "--data.num_workers=1"]
    env = {SIMULATE: None, "PYTHONPATH": str(ROOT)}
    cli = [sys.executable, "-m", "lightning_gaudi.tools.command_line"]
    said = run([*cli, *words], cwd=tmp_path, env=env, timeout=300).stderr
    assert "HPU available: True, using: 2 HPU" in said
    assert "`max_steps=2` reached" in said
    assert (tmp_path / "runs" / "mrpc" / "simulated" / "version_0" / "config.yaml").is_file()
