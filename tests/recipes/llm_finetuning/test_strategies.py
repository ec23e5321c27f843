"""On two cards each strategy has the losses of one process, all weights trained or adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.helpers.trainers import run_trainers
from tests.recipes.llm_finetuning.conftest import FAMILIES, make_module, make_tokenizer
from tests.recipes.llm_finetuning.test_adapters import _fit, cli_of

NUM_STEPS, SAVED_AT = 20, 10
_PARALLEL = "--trainer.strategy=lightning.pytorch.strategies.ModelParallelStrategy"
_SIZES = "--trainer.strategy.init_args"
_FSDP2 = (_PARALLEL, f"{_SIZES}.data_parallel_size=2", f"{_SIZES}.tensor_parallel_size=1")
_TENSORS = (_PARALLEL, f"{_SIZES}.data_parallel_size=1", f"{_SIZES}.tensor_parallel_size=2")
STRATEGIES = {
    "ddp": (),
    "fsdp2": _FSDP2,
    "tensors": _TENSORS,
    "sequences": (*_TENSORS, "--model.sequence_parallel=tensor"),
    "ulysses": (*_TENSORS, "--model.sequence_parallel=ulysses"),
    "zero1": ("--trainer.strategy=deepspeed_stage_1",),
    "zero3": ("--trainer.strategy=deepspeed_stage_3",),
}
TOGETHER = ("tensors", "sequences", "ulysses")
"""Their cards compute on the same rows."""
SPREAD = ("fsdp2", "ulysses")
"""Of these the first rank reads the model."""
METHODS = ("lora", "full", "dpo")
PACKS = {"packed": "null", "alone": "1"}
_CASES = [
    (name, method, packs)
    for name in STRATEGIES
    for method in METHODS
    for packs in PACKS
    if (name, method) != ("ulysses", "dpo")  # refused
]


def _settings(method: str, packs: str) -> list[str]:
    objective = ("--data.objective=dpo", "--data.pack_length=128") if method == "dpo" else ()
    return [
        *objective,
        *(
            f"--model.method={'full' if method == 'full' else 'lora'}",
            "--model.optimizer=adamw",
            "--model.learning_rate=1e-3",
        ),
        *(f"--trainer.max_steps={NUM_STEPS}", "--trainer.max_epochs=-1"),
        f"--data.max_sequences_per_pack={PACKS[packs]}",
    ]


def _batch(strategy: str) -> str:
    """Rows of a card: those that cut layers up compute on the same ones."""
    return f"--data.batch_size={2 if strategy in TOGETHER else 1}"


def _read_nothing(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the first rank reads, and the others get their parts of it")


def _train(rank: int, path: Path, base: str, rows: Path, pairs: Path) -> dict[str, list[float]]:
    found = {}
    read = AutoModelForCausalLM.from_pretrained
    for name, method, packs in _CASES:
        takes = rank > 0 and name in SPREAD
        AutoModelForCausalLM.from_pretrained = _read_nothing if takes else read
        settings = [*_settings(method, packs), *STRATEGIES[name], "--trainer.devices=2"]
        data = pairs if method == "dpo" else rows
        cli = cli_of(path / name, base, data, _batch(name), *settings)
        found[f"{name}-{method}-{packs}"] = _fit(cli)
    return found


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: Any, base: str, rows: Path, pairs: Path
) -> list[dict[str, list[float]]]:
    """The losses of each rank, by case."""
    folder = tmp_path_factory.mktemp("strategies")
    return run_trainers(_train, folder, folder, base, rows, pairs, timeout=280)


def _save_and_resume(rank: int, path: Path, base: str, rows: Path) -> dict[str, Any]:
    """Of adapters: the losses behind a checkpoint, those of a run that resumes it, and its size."""
    found = {}
    for name, strategy in STRATEGIES.items():
        settings = [*_settings("lora", "packed"), *strategy, "--trainer.devices=2"]
        settings += [_batch(name), f"--trainer.max_steps={NUM_STEPS}"]
        saver = ModelCheckpoint(
            path / name, filename="{step}", every_n_train_steps=SAVED_AT, save_top_k=-1
        )
        losses = _fit(cli_of(path / name / "run", base, rows, *settings), saver)
        file = path / name / f"step={SAVED_AT}.ckpt"
        resumed = _fit(cli_of(path / name / "again", base, rows, *settings), resume=file)
        files = [file] if file.is_file() else [each for each in file.rglob("*") if each.is_file()]
        size = sum(each.stat().st_size for each in files)
        found[name] = {"losses": losses[SAVED_AT:], "resumed": resumed, "size": size}
    return found


@pytest.fixture(scope="module")
def wide(tmp_path_factory: Any) -> str:
    """A folder with a base beside which what describes a checkpoint's tensors is small."""
    folder = tmp_path_factory.mktemp("wide")
    config = FAMILIES["llama"]()
    config.hidden_size, config.intermediate_size, config.head_dim = 256, 512, 64
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any, wide: str, rows: Path) -> list[dict[str, Any]]:
    """What the ranks saved and resumed, by strategy."""
    folder = tmp_path_factory.mktemp("saved")
    return run_trainers(_save_and_resume, folder, folder, wide, rows, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_adapters_are_resumed_with_the_same_bits(saved: list[dict[str, Any]], name: str) -> None:
    for rank in saved:
        assert len(rank[name]["losses"]) == NUM_STEPS - SAVED_AT
        assert rank[name]["resumed"] == rank[name]["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_checkpoint_of_adapters_has_no_base(
    saved: list[dict[str, Any]], wide: str, name: str
) -> None:
    base = (Path(wide) / "model.safetensors").stat().st_size
    model = make_module(wide, method="lora", lora_rank=4)
    trained = sum(each.numel() * 4 for each in model.parameters() if each.requires_grad)
    # Of DeepSpeed two scripts are in it, and of all what describes each tensor of each card.
    assert saved[0][name]["size"] < 3 * trained + base / 8


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Any, base: str, rows: Path, pairs: Path) -> dict[str, list[float]]:
    """The losses of one process, on batches of both cards together."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for method in METHODS:
        for packs in PACKS:
            data = pairs if method == "dpo" else rows
            cli = cli_of(folder, base, data, "--data.batch_size=2", *_settings(method, packs))
            found[f"{method}-{packs}"] = _fit(cli)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
@pytest.mark.parametrize("case", _CASES, ids="-".join)
def test_losses_are_those_of_one_process(
    ranks: list[dict[str, list[float]]], alone: dict[str, list[float]], case: tuple[str, str, str]
) -> None:
    _, method, packs = case
    found = torch.tensor([rank["-".join(case)] for rank in ranks]).double().mean(0)
    expected = torch.tensor(alone[f"{method}-{packs}"]).double()
    assert len(expected) == NUM_STEPS
    # Of a loss below 1, as DPO's, the difference itself: its log-probabilities are sums near 100.
    assert ((found - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all(), (found, expected)
