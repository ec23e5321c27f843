"""What goes wrong with checkpoints in shards is said, and leaves the checkpoint that there was."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy

from lightning_gaudi.checkpoint import restricted
from lightning_gaudi.deepspeed.checkpoint import save
from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidated
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.deepspeed_checkpoint_cases import Rich, evaluate, fit, zero

STAGES = (2, 3)


DAMAGES = {2: "missing", 3: "truncated"}


def _damage(home: Path, kind: str) -> None:
    version = home / (home / "latest").read_text()
    shard = next(version.glob("*zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    if kind == "missing":
        shard.unlink()
    elif kind == "flipped":
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    else:
        os.truncate(shard, shard.stat().st_size // 2)


def _message(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _fail(rank: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for stage in STAGES:
        home = folder / str(stage)
        _, trainer = fit(rank, 2, Rich(), max_epochs=1, **zero(stage))
        trainer.save_checkpoint(home)
        before = consolidated(home)[0]["state_dict"]
        found[stage, "disk"] = _message(_save_on_full_disk, rank, trainer, home)
        found[stage, "unpicklable"] = _message(
            save.save, trainer.strategy.model, home, {"x": lambda: 0}, exclude_frozen=False
        )
        after = consolidated(home)[0]["state_dict"]
        found[stage, "intact"] = all(torch.equal(after[name], before[name]) for name in before)
        found[stage, "left"] = sorted(each.name for each in home.iterdir())
        for kind in (DAMAGES[stage], "flipped"):
            found[stage, kind] = _load_damaged(rank, folder, home, stage, kind)
        for verify in ("on", "off"):
            found[stage, verify] = _read_by_deepspeed(rank, home, stage, verify)
        for name, settings in _refused(home).items():
            found[stage, name] = _message(fit, rank, 2, Rich(), ckpt_path=home, **settings)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.save_checkpoint(folder / "weights", weights_only=True)
        fit(rank, 2, Rich(), max_epochs=1, strategy="ddp")[1].save_checkpoint(folder / "ddp.ckpt")
        fit(rank, 2, Rich(), ckpt_path=f"{folder}/ddp.ckpt", **zero(2))
    found["warnings"] = [str(each.message) for each in warned]
    found["options"] = _message(trainer.save_checkpoint, folder / "x", storage_options={})
    found["part"] = _message(evaluate, rank, 2, f"{folder}/2/checkpoint", **zero(2))
    found["nothing"] = _message(evaluate, rank, 2, f"{folder}/none", **zero(2))
    return found


def _save_on_full_disk(rank: int, trainer: Any, home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:

            def write(state: Any, file: Any) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(save, "save_as_cpu_tensors", write)
        trainer.save_checkpoint(home)


def _load_damaged(rank: int, folder: Path, home: Path, stage: int, kind: str) -> tuple[str, bool]:
    """What was raised, and whether the model is as it was."""
    copy, model = folder / f"{stage}-{kind}", Rich()
    if rank == 0:
        shutil.copytree(home, copy)
        _damage(copy, kind)
    torch.distributed.barrier()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    message = _message(fit, rank, 2, model, ckpt_path=copy, **zero(stage))
    # Under ZeRO-3 there is nothing whole to compare.
    after = before if stage == 3 else model.state_dict()
    return message, all(torch.equal(after[name].cpu(), before[name]) for name in before)


def _read_by_deepspeed(rank: int, home: Path, stage: int, verify: str) -> list[str]:
    """The files that DeepSpeed reads itself as a fit goes on."""
    names: list[str] = []
    instead_of = restricted.instead_of

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        load = instead_of(original)

        def record(file: str, *args: Any, **options: Any) -> Any:
            names.append(Path(file).name)
            return load(file, *args, **options)

        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restricted, "instead_of", recording)
        patch.setenv("LIGHTNING_GAUDI_RELIABILITY", f"verify_checkpoints={verify}")
        fit(rank, 2, Rich(), ckpt_path=str(home), **zero(stage))
    return names


def _refused(home: Path) -> dict[str, dict[str, Any]]:
    if home.name == "2":
        return {"stage": zero(3)}
    return {
        "stage": zero(2),
        "precision": zero(int(home.name), precision="bf16-true"),
        "node": {
            "strategy": DeepSpeedStrategy(
                config={
                    "zero_optimization": {"stage": int(home.name)},
                    "checkpoint": {"use_node_local_storage": True},
                    "zero_allow_untested_optimizer": True,
                }
            ),
            "checkpoints": home.with_name(f"{home.name}-node"),
        },
    }


@pytest.fixture(scope="module", **SLOW)
def ranks(tmp_path_factory: Any) -> list[dict[Any, Any]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return run_trainers(_fail, folder, folder)


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_of_one_rank_fails_all_and_leaves_the_last_checkpoint(
    ranks: Any, stage: int
) -> None:
    assert ranks[0][stage, "disk"].startswith("OSError: Rank 1 failed: ")
    for rank in ranks:
        assert "No space left on device" in rank[stage, "disk"]
        assert "pickle" in rank[stage, "unpicklable"]
        assert rank[stage, "intact"]
        assert rank[stage, "left"] == [
            "checkpoint",
            "latest",
            "zero_to_fp32.py",
            "zero_to_torch.py",
        ]


@pytest.mark.parametrize(
    ("stage", "kind", "text"),
    [
        (2, "missing", "is missing."),
        (3, "truncated", "is truncated: "),
        (2, "flipped", "has the SHA-256 "),
        (3, "flipped", "has the SHA-256 "),
    ],
)
def test_a_damaged_checkpoint_is_named_before_anything_is_loaded(
    ranks: Any, stage: int, kind: str, text: str
) -> None:
    for rank in ranks:
        message, is_as_it_was = rank[stage, kind]
        shard = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        assert f"checkpoint is damaged: {shard} {text}" in message
        assert is_as_it_was


@pytest.mark.parametrize("stage", STAGES)
def test_what_was_read_to_be_compared_is_not_read_again(ranks: Any, stage: int) -> None:
    for number, rank in enumerate(ranks):
        prefix = f"zero_pp_rank_{number}_" if stage == 3 else ""
        assert rank[stage, "on"] == []
        assert {*rank[stage, "off"]} == {
            f"{prefix}mp_rank_00_model_states.pt",
            f"zero_pp_rank_{number}_mp_rank_00_optim_states.pt",
        }


@pytest.mark.parametrize(
    ("stage", "kind", "text"),
    [
        (2, "stage", "was saved with ZeRO stage 1 or 2, and this run has stage 3"),
        (3, "stage", "was saved with ZeRO stage 3, and this run has stage 2"),
        (3, "precision", "was saved in fp32 or fp16, and this run trains in bf16"),
        (3, "node", "use_node_local_storage=true"),
    ],
)
def test_what_deepspeed_cannot_go_on_with_is_refused(
    ranks: Any, stage: int, kind: str, text: str
) -> None:
    for rank in ranks:
        assert text in rank[stage, kind]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("options", "TypeError: DeepSpeed has no use for storage_options={}"),
        ("part", "it is a part of one. Pass "),
        ("nothing", "There is no checkpoint at "),
    ],
)
def test_a_path_that_is_no_checkpoint_is_refused(ranks: Any, kind: str, text: str) -> None:
    for rank in ranks:
        assert text in rank[kind]


@pytest.mark.parametrize(
    "text", ["save_weights_only=True makes no smaller", "ddp.ckpt was not saved by DeepSpeed"]
)
def test_rank_zero_warns_of_what_is_not_kept(ranks: Any, text: str) -> None:
    assert len([each for each in ranks[0]["warnings"] if text in each]) == 1
    assert not [each for each in ranks[1]["warnings"] if text in each]


def _save(rank: int, home: Path, *, kills: bool) -> None:
    _, trainer = fit(rank, 2, Rich(), max_epochs=1, **zero(3))
    if kills and rank == 1:

        def write(state: Any, file: Any) -> None:
            file.write(b"PK")
            os.kill(os.getpid(), signal.SIGKILL)

        save.save_as_cpu_tensors = write
    trainer.save_checkpoint(home)


def _save_and_die(rank: int, home: Path) -> None:
    _save(rank, home, kills=False)
    _save(rank, home, kills=True)


def _save_again(rank: int, home: Path) -> float:
    loss = evaluate(rank, 2, str(home), **zero(3))
    _save(rank, home, kills=False)
    return loss


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    home = tmp_path / "last.ckpt"
    with pytest.raises(AssertionError, match="SIGKILL"):
        run_trainers(_save_and_die, tmp_path, home)
    assert (home / "latest").read_text() == "checkpoint"
    losses = run_trainers(_save_again, tmp_path, home)
    assert all(loss < 1 for loss in losses)
    assert [each.name for each in home.iterdir() if each.is_dir()] == ["checkpoint-2"]
    assert (home / "latest").read_text() == "checkpoint-2"
