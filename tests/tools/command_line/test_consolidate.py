"""`lightning-gaudi consolidate`, which needs no HPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate
from lightning_gaudi.tools.command_line import main
from tests.helpers.forked import fork_module
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import Rich, evaluate, fit, zero
from tests.strategies.sharded_cases import loader

_CLI = ("lightning_gaudi.tools.command_line", "consolidate")
_NO_HPU = {"LIGHTNING_GAUDI_SIMULATE": None}
NAMES = ("deepspeed", "fsdp")


def _save(rank: int, folder: Path) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The weights of DDP, and what a test with the shards gives."""
    model = Rich()
    fit(rank, 2, model, max_epochs=1, strategy="ddp")
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    losses = {}
    for name in NAMES:
        settings = _strategy(name)
        _, trainer = fit(rank, 2, Rich(), max_epochs=1, **settings)
        trainer.save_checkpoint(folder / name)
        losses[name] = evaluate(rank, 2, str(folder / name), **_strategy(name))
    return weights, losses


def _strategy(name: str) -> dict[str, Any]:
    if name == "deepspeed":
        return zero(3)
    return {"strategy": pl.strategies.FSDPStrategy(state_dict_type="sharded", use_orig_params=True)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> tuple[Path, dict[str, Tensor], dict[str, float]]:
    """A folder with checkpoints in shards, the weights in them, and the mean loss of each."""
    folder = tmp_path_factory.mktemp("saved")
    (weights, losses), (_, others) = run_trainers(_save, folder, folder)
    return folder, weights, {name: (losses[name] + others[name]) / 2 for name in NAMES}


@pytest.mark.slow
def test_safetensors_of_zero_have_the_weights_of_ddp(saved: Any, tmp_path: Path) -> None:
    folder, weights, _ = saved
    consolidate(folder / "deepspeed", tmp_path / "new" / "weights.safetensors")
    found = load_file(tmp_path / "new" / "weights.safetensors")
    assert found.keys() == weights.keys()
    for key, each in weights.items():
        assert torch.equal(found[key], each), key


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_kinds_have_the_same_weights(saved: Any, name: str, tmp_path: Path) -> None:
    folder, weights, _ = saved
    for suffix in ("safetensors", "pt"):
        consolidate(folder / name, tmp_path / f"model.{suffix}")
    found = load_file(tmp_path / "model.safetensors")
    expected = torch.load(tmp_path / "model.pt", weights_only=False)["state_dict"]
    assert found.keys() == expected.keys() == weights.keys()
    for key, each in expected.items():
        assert torch.equal(found[key], each), key


@pytest.mark.slow_but("fsdp")
@pytest.mark.parametrize("name", NAMES)
def test_any_machine_tests_with_a_lightning_checkpoint(
    saved: Any, name: str, tmp_path: Path
) -> None:
    folder, _, losses = saved
    output = tmp_path / "whole.ckpt"
    if name == "deepspeed":
        result = fork_module(*_CLI, str(folder / name), str(output), env=_NO_HPU)
        assert result.stdout.startswith(f"{output}: 0.")
    else:
        consolidate(folder / name, output)
    trainer = pl.Trainer(accelerator="cpu", devices=1, **QUIET)
    (found,) = trainer.test(Rich(), loader(0, 1, 3), ckpt_path=str(output), verbose=False)
    assert found["test_loss"] == pytest.approx(losses[name], abs=1e-6)
    model = Rich.load_from_checkpoint(output)
    assert model.seen.item() == 3


def test_tied_weights_stay_tied_in_a_lightning_checkpoint(saved: Any, tmp_path: Path) -> None:
    folder, _, _ = saved
    consolidate(folder / "deepspeed", tmp_path / "whole.ckpt")
    found = torch.load(tmp_path / "whole.ckpt", weights_only=False)["state_dict"]
    tied = [found[f"net.{block}.up.weight"].data_ptr() for block in (1, 2)]
    assert tied[0] == tied[1]


def test_a_name_that_says_no_kind_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consolidate", str(tmp_path / "none"), str(tmp_path / "model.bin")]) == 2
    assert "ends with '.bin'" in capsys.readouterr().err
    assert main(["consolidate", str(tmp_path / "none"), str(tmp_path / "model.ckpt")]) == 2
    assert f"There is no checkpoint at {tmp_path / 'none'}" in capsys.readouterr().err


def test_a_damaged_checkpoint_leaves_the_output_as_it_was(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = saved
    home = tmp_path / "damaged"
    shutil.copytree(folder / "deepspeed", home)
    lost = home / "checkpoint" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    lost.unlink()
    output = tmp_path / "model.ckpt"
    output.write_text("mine")
    assert main(["consolidate", str(home), str(output)]) == 2
    assert f"{lost.name} is missing" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_deepspeed_that_is_not_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "latest").write_text("checkpoint")
    assert main(["consolidate", str(tmp_path), str(tmp_path / "model.ckpt")]) == 2
    assert f"The checkpoint {tmp_path} needs the package deepspeed" in capsys.readouterr().err


def test_safetensors_that_are_not_installed_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["consolidate", str(tmp_path), str(tmp_path / "model.safetensors")]) == 2
    said = "needs the package safetensors, which is not installed. Run: pip install safetensors"
    assert said in capsys.readouterr().err


def test_a_command_after_dashes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["consolidate", "a", "b.ckpt", "--", "python"])
    assert "unrecognized arguments after --: python" in capsys.readouterr().err
