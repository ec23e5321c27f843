"""The configurations for models larger than a card train a small T5 as DDP does, on two cards.

Each is the YAML of the recipe, with a tiny model, two cards and float32; all in one start.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.distributed.tensor import DTensor
from transformers import T5ForConditionalGeneration

from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate
from recipes.common.export import export
from recipes.t5_summarization.module import T5Summarization
from recipes.t5_summarization.sharding import shard
from tests.helpers.recipes import Losses, quiet_cli
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.recipes.t5_summarization.conftest import FIXTURES

NUM_STEPS, SAVED_AT, VALIDATED_AT = 4, 2, 3
SIZE = "--trainer.strategy.init_args."
CONFIGURATIONS = {
    "ddp": ("t5_3b_bf16_8x", "--data.batch_size=2", "--model.optimizer=adamw"),
    "zero3": ("t5_3b_deepspeed_8x", "--data.batch_size=2"),
    "fsdp2": ("t5_3b_fsdp2_8x", "--data.batch_size=2", f"{SIZE}data_parallel_size=2"),
    "tensor_parallel": (
        "t5_3b_tensor_parallel_8x",
        "--data.batch_size=4",
        f"{SIZE}tensor_parallel_size=2",
    ),
}
SHARDED = [name for name in CONFIGURATIONS if name != "ddp"]


class Held(Callback):
    """How many weights a card holds, after training."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        parts = [getattr(weight, "ds_tensor", weight) for weight in pl_module.parameters()]
        whole = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
        self.num_weights = sum(part.numel() for part in whole)


def _cli(name: str, path: Path, pretrained: str, *overrides: str) -> Any:
    """Data, model and Trainer of a configuration, made small."""
    config, *own = CONFIGURATIONS[name]
    seed_everything(0, verbose=False)
    return quiet_cli(
        "t5_summarization",
        path,
        *(f"--model.name={pretrained}", f"--data.tokenizer={pretrained}", "--data.subset=null"),
        *("--data.source=path", f"--data.path={FIXTURES}", "--data.num_workers=0"),
        *("--data.max_source_length=96", "--data.max_target_length=8", "--data.num_buckets=2"),
        *("--model.dropout=0", "--model.warmup_steps=0"),
        *("--trainer.devices=2", "--trainer.precision=32-true", "--trainer.max_epochs=-1"),
        *(f"--trainer.max_steps={NUM_STEPS}", f"--trainer.val_check_interval={VALIDATED_AT}"),
        *("--trainer.check_val_every_n_epoch=null", "--trainer.limit_val_batches=1"),
        f"--model.predictions={path / name}.jsonl",
        *(*own, *overrides),
        config=config,
    )


def _fit(cli: Any, *callbacks: Callback, resume: Path | None = None) -> list[float]:
    """The loss of each step on this rank."""
    losses = Losses()
    cli.trainer.callbacks += [losses, *callbacks]
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=resume)
    return [value.item() for value in losses.values]


def _train(rank: int, path: Path, pretrained: str) -> dict[str, Any]:
    return {name: _train_one(name, path, pretrained) for name in CONFIGURATIONS}


def _train_one(name: str, path: Path, pretrained: str) -> dict[str, Any]:
    """What a configuration computes in training, evaluation and prediction."""
    cli, held = _cli(name, path, pretrained), Held()
    saver = ModelCheckpoint(path / name, every_n_train_steps=SAVED_AT, save_top_k=-1)
    losses = _fit(cli, saver, held)
    logged = {key: value.item() for key, value in cli.trainer.callback_metrics.items()}
    cli = _cli(name, path, pretrained)
    cli.trainer.predict(cli.model, cli.datamodule, False, _saved(path, name))
    return {"losses": losses, "logged": logged, "num_weights": held.num_weights}


def _train_again(rank: int, path: Path, pretrained: str) -> dict[str, Any]:
    """The losses of each configuration resumed, in its own precision, and of packed rows."""
    found, only_train = {}, "--trainer.limit_val_batches=0"
    for name in CONFIGURATIONS:
        resumed = _fit(_cli(name, path, pretrained, only_train), resume=_saved(path, name))
        short = (only_train, f"--trainer.max_steps={SAVED_AT}", "--trainer.precision=bf16-mixed")
        bf16 = _fit(_cli(name, path, pretrained, *short))
        packs = ("--data.max_sequences_per_pack=null", "--data.pack_length=192")
        cli = _cli(name, path, pretrained, only_train, f"--trainer.max_steps={SAVED_AT}", *packs)
        found[name] = {"resumed": resumed, "bf16": bf16, "packed": _fit(cli)}
    return found


def _saved(path: Path, name: str) -> Path:
    return path / name / f"epoch=0-step={SAVED_AT}.ckpt"


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    """Where the ranks write."""
    folder: Path = tmp_path_factory.mktemp("sharded")
    return folder


@pytest.fixture(scope="module", **SLOW)
def ranks(path: Path, pretrained: str) -> list[dict[str, Any]]:
    """What the two ranks found, by configuration."""
    found = run_trainers(_train, path, path, pretrained, timeout=280)
    for name in CONFIGURATIONS:
        lines = (path / f"{name}.jsonl").read_text().splitlines()
        found[0][name]["summaries"] = [json.loads(line) for line in lines]
        found[0][name]["checkpoint"] = _saved(path, name)
    return found


@pytest.fixture(scope="module")
def others(
    ranks: list[dict[str, Any]], path: Path, pretrained: str, tmp_path_factory: Any
) -> list[dict[str, Any]]:
    """What the two ranks found in further runs, with the checkpoints of the first ones."""
    own = tmp_path_factory.mktemp("others")
    return run_trainers(_train_again, own, path, pretrained, timeout=280)


def _losses(ranks: list[dict[str, Any]], name: str, run: str = "losses") -> torch.Tensor:
    """Of each step, on the batch of both cards together."""
    return torch.tensor([rank[name][run] for rank in ranks], dtype=torch.float64).mean(0)


@pytest.mark.parametrize("name", SHARDED)
def test_losses_are_those_of_ddp(ranks: list[dict[str, Any]], name: str) -> None:
    expected = _losses(ranks, "ddp")
    assert len(expected) == NUM_STEPS
    torch.testing.assert_close(_losses(ranks, name), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", SHARDED)
def test_evaluation_and_summaries_are_those_of_ddp(ranks: list[dict[str, Any]], name: str) -> None:
    logged, expected = ranks[0][name]["logged"], ranks[0]["ddp"]["logged"]
    names = {key for key in expected if not key.endswith("distinct")}
    assert {"val/loss", "val/rougeL", "val/lead1_rougeL"} <= names <= set(logged)
    for key in names:
        assert logged[key] == pytest.approx(expected[key], abs=1e-5), key
    summaries = ranks[0]["ddp"]["summaries"]
    assert len({line["summary"] for line in summaries}) > 2
    assert ranks[0][name]["summaries"] == summaries


@pytest.mark.parametrize("name", SHARDED)
def test_losses_of_packed_rows_are_those_of_ddp(others: list[dict[str, Any]], name: str) -> None:
    expected = _losses(others, "ddp", "packed")
    assert len(expected) == SAVED_AT
    torch.testing.assert_close(_losses(others, name, "packed"), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_resumed_run_goes_on_with_the_same_bits(
    ranks: list[dict[str, Any]], others: list[dict[str, Any]], name: str
) -> None:
    for whole, other in zip(ranks, others, strict=True):
        assert len(other[name]["resumed"]) == NUM_STEPS - SAVED_AT
        assert other[name]["resumed"] == whole[name]["losses"][SAVED_AT:]


@pytest.mark.parametrize("name", SHARDED)
def test_losses_in_bf16_are_those_of_ddp_but_for_its_rounding(
    ranks: list[dict[str, Any]], others: list[dict[str, Any]], name: str
) -> None:
    """With weights in float32; only DeepSpeed computes layer norms and residuals in bfloat16.

    Within half a unit in bfloat16's last place: which products round up depends on the processor.
    """
    expected = _losses(others, "ddp", "bf16")
    assert not torch.equal(expected, _losses(ranks, "ddp")[:SAVED_AT])
    torch.testing.assert_close(_losses(others, name, "bf16"), expected, rtol=2**-9, atol=0)


def test_a_card_holds_its_part_of_the_weights(ranks: list[dict[str, Any]], pretrained: str) -> None:
    model = T5ForConditionalGeneration.from_pretrained(pretrained)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    total = sum(sizes.values())
    whole = sum(size for name, size in sizes.items() if "norm" in name or "shared" in name)
    expected = {
        "ddp": total,
        "zero3": total / 2,
        "fsdp2": total / 2,
        "tensor_parallel": whole + (total - whole) / 2,
    }
    for rank in ranks:
        assert {name: rank[name]["num_weights"] for name in CONFIGURATIONS} == expected


@pytest.mark.parametrize("name", SHARDED)
def test_a_consolidated_checkpoint_is_exported(
    ranks: list[dict[str, Any]], tmp_path: Path, pretrained: str, name: str
) -> None:
    folder = ranks[0][name]["checkpoint"]
    with pytest.raises(ValueError, match=f"is a folder of shards.* consolidate {folder} "):
        export(folder, tmp_path)
    consolidate(folder, tmp_path / "whole.ckpt")
    export(tmp_path / "whole.ckpt", tmp_path / name)
    export(ranks[0]["ddp"]["checkpoint"], tmp_path / "ddp")
    ours, expected, untrained = (
        T5ForConditionalGeneration.from_pretrained(path).state_dict()
        for path in (tmp_path / name, tmp_path / "ddp", pretrained)
    )
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    moved = [(expected[key] - untrained[key]).abs().max() for key in expected]
    assert min(moved) > 1e-4  # of two steps of at most 1e-4


@pytest.mark.parametrize(("name", "size"), [("num_heads", 4), ("d_ff", 64)])
def test_cards_that_do_not_divide_the_model_are_refused(name: str, size: int) -> None:
    mesh = {"tensor_parallel": SimpleNamespace(size=lambda: 2)}
    module = T5Summarization(vocab_size=60, **{name: size + 1})
    with pytest.raises(ValueError, match=rf"tensor_parallel_size=2 .* {name}={size + 1}\. Give"):
        shard(module, module.model, mesh)


@pytest.mark.parametrize("optimizer", ["lamb", "fused_lamb", "fused_adamw"])
@pytest.mark.parametrize("strategy", [ModelParallelStrategy, FSDPStrategy])
def test_optimizers_that_need_whole_weights_are_refused(strategy: Any, optimizer: str) -> None:
    module = T5Summarization(vocab_size=60, optimizer=optimizer)
    module._trainer = SimpleNamespace(strategy=strategy(), gradient_clip_val=None)
    with pytest.raises(ValueError, match=f"model.optimizer={optimizer} .*{strategy.__name__}"):
        module.configure_optimizers()


def test_a_weight_decay_that_flat_weights_do_not_take_is_refused() -> None:
    module = T5Summarization(vocab_size=60, weight_decay=0.1)
    module._trainer = SimpleNamespace(strategy=FSDPStrategy(), gradient_clip_val=None)
    with pytest.raises(ValueError, match=r"weight_decay=0\.1 .*FSDPStrategy .*weight_decay=0"):
        module.configure_optimizers()
