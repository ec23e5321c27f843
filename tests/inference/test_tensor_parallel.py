"""Models on several cards: what they generate, and what a token costs."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from lightning_gaudi import vendor
from lightning_gaudi.inference import TextGenerator, check_fits, memory_table
from lightning_gaudi.inference.tensor_parallel import num_cards
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
PROMPT = torch.tensor([[70001, 250000]])
LAZY = {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what transformers generates of them."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        save_with_reference(name, folder / name)
        assert torch.load(folder / name / "reference.pt")["tokens"].unique().numel() >= 20
    return folder


def _differences(
    rank: int, folder: Path, names: tuple[str, ...], num_ranks: int, costly: tuple[str, ...]
) -> dict[str, Any]:
    """By model: how many tokens are others than transformers', and how far logits are from its."""
    found = {}
    for name in names:
        reference = torch.load(folder / name / "reference.pt")
        tokens, logits = predict(folder / name, num_ranks, prompts())
        model = on_cards(folder / name, init_device_mesh("hpu", (num_ranks,)))
        found[name] = {
            "tokens": int((tokens != reference["tokens"]).sum()),
            "logits": float((logits - reference["logits"]).abs().max()),
            "alone": int((_alone(model) != reference["alone"]).sum()),
            "costs": _costs(model) if name in costly else None,
            "refused": _refused(model),
        }
        if name == "bloom6":
            mesh = init_device_mesh("hpu", (num_ranks,))
            fused = on_cards(folder / name, mesh, attn_implementation="gaudi_fused_sdpa")
            found[name]["alone"] += int((_alone(fused) != reference["alone"]).sum())
    return found


def _alone(model: Any) -> torch.Tensor:
    """What is generated of the second prompt, in a batch of its own."""
    ids, mask = prompts()
    generator = TextGenerator(model, buckets=(BUCKET,))
    length = int(mask[1].sum())
    return generator(ids[1:2, -length:], mask[1:2, -length:], NUM_TOKENS).cpu()


def _costs(model: Any) -> dict[str, Any]:
    """Graphs for 20 tokens and for 100, and what 20 tokens cost once there are graphs."""
    graphs = {}
    # Batch sizes that were not there before, and so no graph that is known.
    for batch_size, num_tokens in ((2, 20), (3, 100)):
        ids, mask = (each[:batch_size] for each in prompts())
        generator = TextGenerator(model, buckets=(BUCKET,))
        before = _num_graphs()
        generator(ids, mask, num_tokens)
        graphs[num_tokens] = _num_graphs() - before
        reset_statistics()
        generator(ids, mask, 20)
    collectives = {name: stats["calls"] for name, stats in collective_stats().items()}
    return {"graphs": graphs, "collectives": collectives, "syncs": host_syncs()}


def _refused(model: Any) -> str:
    """What is said where collectives are not part of graphs."""
    variable = "PT_HPU_ENABLE_LAZY_COLLECTIVES"
    given = os.environ.pop(variable)
    try:
        TextGenerator(model, engine="none")
        TextGenerator(model, buckets=(BUCKET,))
    except ValueError as error:
        return str(error)
    finally:
        os.environ[variable] = given
    return ""


def _num_graphs() -> int:
    stats = vendor.metric("graph_compilation")
    assert stats is not None
    return int(stats["TotalNumber"])


def _check(
    folder: Path, tmp_path: Path, num_ranks: int, names: tuple[str, ...], costly: tuple[str, ...]
) -> None:
    args = (folder, names, num_ranks, costly)
    ranks = run_trainers(_differences, tmp_path, *args, num_ranks=num_ranks, env=LAZY)
    for found in ranks:
        for name in names:
            assert found[name]["tokens"] == found[name]["alone"] == 0, name
            assert found[name]["logits"] < 1e-5, name
            match = rf"HPU graph of \w+ on {num_ranks} cards.*Set PT_HPU_ENABLE_LAZY_COLLECTIVES=1"
            assert bool(re.search(match, found[name]["refused"])) == (num_ranks > 1), name
        for name in costly:
            costs = found[name]["costs"]
            assert costs["graphs"][100] <= costs["graphs"][20], name
            assert costs["syncs"] == {}, name
            expected = {"all_reduce": 20 * (2 * NUM_LAYERS + 1), "all_gather": 20}
            assert costs["collectives"] == (expected if num_ranks > 1 else {}), name


@pytest.mark.slow
def test_two_cards_generate_what_transformers_does_on_the_cpu(folder: Path, tmp_path: Path) -> None:
    """Six heads: of ALiBi, three slopes that a model with three heads would not have."""
    _check(folder, tmp_path, 2, ("bloom6",), ("bloom6",))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_any_number_of_cards_generates_it_and_a_token_costs_each_model_the_same(
    folder: Path, tmp_path: Path, num_ranks: int
) -> None:
    even = ("bloom", "llama", "qwen2", "gpt2")
    names = {1: MODELS, 2: MODELS, 4: even, 8: ("bloom", "gpt2")}[num_ranks]
    _check(folder, tmp_path, num_ranks, names, names)


def _compiled(rank: int, folder: Path) -> dict[str, Any]:
    predict(folder / "bloom6", 2, prompts())
    found = {}
    for name in ("bloom", "gpt2"):
        model = on_cards(folder / name, init_device_mesh("hpu", (2,)))
        ids, mask = (each[:8] for each in prompts())
        generator = TextGenerator(model, buckets=(BUCKET,))
        tokens = [generator(ids, mask, NUM_TOKENS).cpu() for _ in range(2)]
        reset_statistics()
        generator(ids, mask, NUM_TOKENS)
        collectives = {name: stats["calls"] for name, stats in collective_stats().items()}
        reference = torch.load(folder / name / "reference.pt")["tokens"][:8]
        found[name] = {
            "engine": generator.engine,
            "tokens": [int((each != reference).sum()) for each in tokens],
            "collectives": collectives,
            "syncs": host_syncs(),
        }
    return found


@pytest.mark.slow
def test_compiled_decoding_on_several_cards_is_one_graph_and_waits_for_no_token(
    folder: Path, tmp_path: Path
) -> None:
    for found in run_trainers(_compiled, tmp_path, folder):
        for name, each in found.items():
            assert each["engine"] == "compile", name
            assert each["tokens"] == [0, 0], name
            expected = {"all_reduce": NUM_TOKENS * (2 * NUM_LAYERS + 1), "all_gather": NUM_TOKENS}
            assert each["collectives"] == expected, name
            assert each["syncs"] == {}, name


def _narrow_bloomz(rank: int, folder: Path) -> dict[str, Any]:
    from transformers import BloomConfig

    table = memory_table(BloomConfig.from_pretrained(folder), 8, 1, 4, torch.float32)
    check_fits(table)
    tokens, logits = predict(folder, 8, (PROMPT, torch.ones_like(PROMPT)), num_tokens=2)
    gc.collect()
    before = vendor.memory_stats()["InUse"]
    model = on_cards(folder, init_device_mesh("hpu", (8,)))
    held = vendor.memory_stats()["InUse"] - before
    assert num_cards(model) == 8
    return {
        "tokens": tokens,
        "logits": logits,
        "held": held,
        "expected": table.total_bytes - table.rows["keys and values"],
    }


@pytest.mark.slow
def test_the_path_of_bloomz_176b_on_a_model_of_its_shape(tmp_path: Path) -> None:
    """112 heads and its vocabulary, few and narrow layers: meta, plan, shards, a token."""
    from transformers import BloomConfig, BloomForCausalLM

    shape = {"hidden_size": 224, "n_layer": 3, "n_head": 112, "vocab_size": 250880}
    config = BloomConfig(**shape, pad_token_id=3, initializer_range=0.1)
    torch.manual_seed(0)
    reference = BloomForCausalLM(config).bfloat16()
    # As on the hub, names begin below the head.
    reference.transformer.save_pretrained(tmp_path, max_shard_size="60MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    reference = reference.float().eval()
    expected = reference.generate(
        PROMPT, max_new_tokens=2, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for found in run_trainers(_narrow_bloomz, ranks, tmp_path, num_ranks=8, env=LAZY):
        assert torch.equal(found["tokens"], expected.sequences[:, 2:])
        logits = torch.stack(expected.logits, 1)
        torch.testing.assert_close(found["logits"], logits, rtol=0, atol=1e-5)
        assert found["expected"] <= found["held"] <= 1.05 * found["expected"]
