"""Models on several cards: what they generate, and what a token costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lightning_gaudi import vendor
from lightning_gaudi.inference import TextGenerator
from lightning_gaudi.simulator import collective_stats, host_syncs, reset_statistics
from tests.helpers.trainers import run_trainers
from tests.inference.parallel_models import (
    BUCKET,
    NUM_LAYERS,
    NUM_TOKENS,
    on_cards,
    predict,
    prompts,
    save_with_reference,
)

MODELS = ("bloom", "bloom6", "llama", "qwen2", "gpt2")
LAZY = {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what transformers generates of them."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        save_with_reference(name, folder / name)
        assert torch.load(folder / name / "reference.pt")["tokens"].unique().numel() >= 20
    return folder


def _differences(rank: int, folder: Path, names: tuple[str, ...], num_ranks: int) -> dict[str, Any]:
    """By model: how many tokens are others than transformers', and how far logits are from its."""
    found = {}
    for name in names:
        reference = torch.load(folder / name / "reference.pt")
        tokens, logits = predict(folder / name, num_ranks)
        model = on_cards(folder / name, init_device_mesh("hpu", (num_ranks,)))
        alone = _alone(model)
        found[name] = {
            "tokens": int((tokens != reference["tokens"]).sum()),
            "logits": float((logits - reference["logits"]).abs().max()),
            "alone": int((alone != reference["alone"]).sum()),
            "costs": _costs(model),
        }
    return found


def _alone(model: Any) -> torch.Tensor:
    """What is generated of the second prompt, in a batch of its own."""
    ids, mask = prompts()
    generator = TextGenerator(model, buckets=(BUCKET,))
    length = int(mask[1].sum())
    return generator(ids[1:2, -length:], mask[1:2, -length:], NUM_TOKENS).cpu()


def _costs(model: Any) -> dict[str, Any]:
    """Graphs for 20 tokens and for 100, and what the second 20 tokens cost."""
    ids, mask = (each[:1] for each in prompts())
    graphs = {}
    for num_tokens in (20, 100):
        generator = TextGenerator(model, buckets=(BUCKET,))
        before = _num_graphs()
        generator(ids, mask, num_tokens)
        graphs[num_tokens] = _num_graphs() - before
        reset_statistics()
        generator(ids, mask, 20)
    collectives = {name: stats["calls"] for name, stats in collective_stats().items()}
    return {"graphs": graphs, "collectives": collectives, "syncs": host_syncs()}


def _num_graphs() -> int:
    stats = vendor.metric("graph_compilation")
    assert stats is not None
    return int(stats["TotalNumber"])


@pytest.mark.parametrize(
    "num_ranks", [1, 2, 4, pytest.param(8, marks=pytest.mark.slow)], ids=lambda n: f"{n}-cards"
)
def test_models_on_several_cards_generate_what_transformers_does_on_the_cpu(
    folder: Path, tmp_path: Path, num_ranks: int
) -> None:
    names = tuple(name for name in MODELS if num_ranks <= 2 or name != "bloom6")
    ranks = run_trainers(
        _differences, tmp_path, folder, names, num_ranks, num_ranks=num_ranks, env=LAZY
    )
    for found in ranks:
        for name in names:
            assert found[name]["tokens"] == found[name]["alone"] == 0, name
            assert found[name]["logits"] < 1e-5, name
            costs = found[name]["costs"]
            assert costs["graphs"][100] <= costs["graphs"][20], name
            assert costs["syncs"] == {}, name
            expected = {"all_reduce": 20 * (2 * NUM_LAYERS + 1), "all_gather": 20}
            assert costs["collectives"] == (expected if num_ranks > 1 else {}), name
