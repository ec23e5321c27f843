"""On two cards each strategy has the losses of one process, all weights trained or adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.trainers import run_trainers
from tests.recipes.llm_finetuning.test_adapters import _fit, cli_of

NUM_STEPS = 20
_FSDP2 = (
    "--trainer.strategy=lightning.pytorch.strategies.ModelParallelStrategy",
    "--trainer.strategy.init_args.data_parallel_size=2",
    "--trainer.strategy.init_args.tensor_parallel_size=1",
)
STRATEGIES = {
    "ddp": (),
    "fsdp2": _FSDP2,
    "zero1": ("--trainer.strategy=deepspeed_stage_1",),
    "zero3": ("--trainer.strategy=deepspeed_stage_3",),
}
METHODS = ("lora", "full")
PACKS = {"packed": "null", "alone": "1"}
_CASES = [(name, method, packs) for name in STRATEGIES for method in METHODS for packs in PACKS]


def _settings(method: str, packs: str) -> list[str]:
    return [
        *(f"--model.method={method}", "--model.optimizer=adamw", "--model.learning_rate=1e-3"),
        *(f"--trainer.max_steps={NUM_STEPS}", "--trainer.max_epochs=-1"),
        f"--data.max_sequences_per_pack={PACKS[packs]}",
    ]


def _train(rank: int, path: Path, base: str, rows: Path) -> dict[str, list[float]]:
    found = {}
    for name, method, packs in _CASES:
        settings = [*_settings(method, packs), *STRATEGIES[name], "--trainer.devices=2"]
        cli = cli_of(path / name, base, rows, "--data.batch_size=1", *settings)
        found[f"{name}-{method}-{packs}"] = _fit(cli)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any, base: str, rows: Path) -> list[dict[str, list[float]]]:
    """The losses of each rank, by case."""
    folder = tmp_path_factory.mktemp("strategies")
    return run_trainers(_train, folder, folder, base, rows, timeout=280)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Any, base: str, rows: Path) -> dict[str, list[float]]:
    """The losses of one process, on batches of both cards together."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for method in METHODS:
        for packs in PACKS:
            cli = cli_of(folder, base, rows, "--data.batch_size=2", *_settings(method, packs))
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
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
