"""Which weights a card has, what is refused, and what is known before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from lightning_gaudi.inference import (
    card_memory_bytes,
    check_fits,
    memory_table,
    parallelize,
)
from lightning_gaudi.simulator.settings import CARDS
from tests.inference.parallel_models import make

GIB = 2**30
BLOOMZ_176B = {"hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880}
BLOOMZ_7B = {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}


@pytest.fixture
def mesh_of() -> Callable[..., DeviceMesh]:
    """Makes the mesh that the first of several ranks has, which speak with nobody."""

    def make_mesh(*sizes: int, **settings: Any) -> DeviceMesh:
        world_size = int(torch.tensor(sizes).prod())
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        return init_device_mesh("cpu", sizes, **settings)

    return make_mesh


def _on_meta(config: Any) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _bytes_of_this_card(model: Any) -> int:
    return sum(
        (each.to_local() if isinstance(each, DTensor) else each).nbytes
        for each in set(model.parameters())
    )


def test_bloomz_176b_has_41_to_47_gib_of_weights_on_each_of_8_cards(
    mesh_of: Callable[..., DeviceMesh],
) -> None:
    config = transformers.BloomConfig(**BLOOMZ_176B)
    model = _on_meta(config)
    whole = _bytes_of_this_card(model)
    assert whole == 2 * 176_247_271_424
    parallelize(model, mesh_of(8))
    held = _bytes_of_this_card(model)
    assert 41 * GIB < held < 47 * GIB
    assert held < 1.05 * whole / 8
    table = memory_table(config, 8, 1, 228)
    assert held == sum(n for name, n in table.rows.items() if name.startswith("weights"))
    # 4.0 MB a token over all cards: two of 70 layers x 14336 numbers of two bytes.
    assert table.rows["keys and values"] == 228 * 2 * 70 * 14336 * 2 // 8
    check_fits(table, card_memory_bytes("gaudi2"))


def test_what_does_not_fit_is_refused_with_need_and_have() -> None:
    large = memory_table(transformers.BloomConfig(**BLOOMZ_176B), 1, 1, 228)
    with pytest.raises(ValueError, match=r"hold 329\.14 GiB and has 94\.62\.(.|\n)*keys and val"):
        check_fits(large, card_memory_bytes("gaudi2"))
    with pytest.raises(ValueError, match=r"hold 329\.14 GiB and has 94\.62"):
        check_fits(large)  # the simulated card's
    small = memory_table(transformers.BloomConfig(**BLOOMZ_7B), 1, 1, 228)
    check_fits(small, card_memory_bytes("gaudi1"))
    assert 13 * GIB < small.total_bytes < 14 * GIB


def test_the_table_is_what_people_see() -> None:
    table = memory_table(transformers.BloomConfig(**BLOOMZ_7B), 8, 1, 228)
    title, *lines = str(table).splitlines()
    assert title == "BloomForCausalLM on 8 cards, batch of 1, 228 tokens, bfloat16, GiB a card:"
    assert [line.split()[-1] for line in lines] == ["1.65", "0.00", "0.01", "1.66"]


def test_keys_and_values_are_counted_by_their_heads() -> None:
    config = transformers.Qwen3Config(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=24,
        vocab_size=100,
    )
    table = memory_table(config, 2, 5, 7, torch.float32)
    assert table.rows["keys and values"] == 2 * 3 * 5 * 7 * 1 * 24 * 4


def test_cards_have_the_memory_that_the_simulator_gives_them() -> None:
    assert [card_memory_bytes(key) for key in CARDS] == [c.memory_bytes for c in CARDS.values()]
    with pytest.raises(ValueError, match="card='gaudi4' is none of gaudi1, gaudi2, gaudi3"):
        card_memory_bytes("gaudi4")


@pytest.mark.parametrize("name", ["num_cards", "batch_size", "num_tokens"])
def test_numbers_that_are_not_positive_are_refused(name: str) -> None:
    given = {"num_cards": 1, "batch_size": 1, "num_tokens": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0 is no positive number"):
        memory_table(make("bloom").config, **given)


def test_weights_that_are_there_are_cut_and_stay_tied(mesh_of: Callable[..., DeviceMesh]) -> None:
    model, whole = make("gpt2"), make("gpt2")
    parallelize(model, mesh_of(4))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not any(each.requires_grad for each in model.parameters())
    # Of 509 words the first of four cards has 128.
    assert torch.equal(model.lm_head.weight.to_local(), whole.lm_head.weight[:128])
    attention, expected = model.transformer.h[1].attn, whole.transformer.h[1].attn
    parts = [part[:, :8] for part in expected.c_attn.weight.split(32, dim=1)]
    held = attention.c_attn.weight.to_local()
    assert torch.equal(held, torch.stack(parts, 1))
    assert torch.equal(attention.c_proj.weight.to_local(), expected.c_proj.weight[:8])
    assert torch.equal(attention.c_proj.bias, expected.c_proj.bias)


def test_a_mesh_of_more_than_one_axis_is_refused(mesh_of: Callable[..., DeviceMesh]) -> None:
    mesh = mesh_of(2, 2, mesh_dim_names=("data_parallel", "tensor_parallel"))
    match = r"mesh of one axis, and this one has 2: data_parallel, tensor_parallel\. Pass one"
    with pytest.raises(ValueError, match=match):
        parallelize(make("bloom"), mesh)
    parallelize(make("bloom"), mesh["tensor_parallel"])


LLAMA = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 100}


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            transformers.BloomConfig(hidden_size=48, n_head=6, n_layer=1, vocab_size=100),
            r"num_attention_heads=6, which 4 cards cannot share.*parallel_size\): 1, 2, 3, 6",
        ),
        (
            transformers.LlamaConfig(num_attention_heads=8, num_key_value_heads=2, **LLAMA),
            r"num_attention_heads=8 and num_key_value_heads=2, which 4 cards.*\): 1, 2\.",
        ),
        (
            transformers.LlamaConfig(num_attention_heads=4, **{**LLAMA, "intermediate_size": 90}),
            r"model\.layers\.0\.mlp\.\w+_proj has a width of 90, which 4 cards cannot share",
        ),
        (
            transformers.LlamaConfig(num_attention_heads=4, **{**LLAMA, "vocab_size": 5}),
            r"model\.embed_tokens has 5 words, which are too few for 4 cards",
        ),
        (
            transformers.OPTConfig(
                hidden_size=48, num_attention_heads=4, num_hidden_layers=1, vocab_size=100
            ),
            r"no plan for OPTForCausalLM \(model type 'opt'\).*bloom.*gpt2.*llama.*qwen2.*one card",
        ),
        (
            transformers.BloomConfig(
                hidden_size=48, n_head=4, n_layer=1, pretraining_tp=2, slow_but_exact=True
            ),
            r"BloomForCausalLM has slow_but_exact=True and pretraining_tp=2.*Set slow_but_exact=F",
        ),
        (
            transformers.GPT2Config(n_embd=48, n_head=4, n_layer=1, add_cross_attention=True),
            r"GPT2LMHeadModel has add_cross_attention=True",
        ),
        (
            transformers.Gemma3TextConfig(
                num_attention_heads=4, num_key_value_heads=4, head_dim=8, **LLAMA
            ),
            # The second is what transformers 5.20 gives.
            r"embed_tokens is a Gemma3TextScaledWordEmbedding, and only a torch\.nn\.Embedding can"
            r"|gives model\.embed_tokens the style 'embedding_rowwise', which is not known here",
        ),
    ],
    ids=lambda each: each.model_type if hasattr(each, "model_type") else "",
)
def test_models_that_four_cards_cannot_share_are_refused(
    mesh_of: Callable[..., DeviceMesh], config: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        parallelize(_on_meta(config), mesh_of(4))


def test_a_style_that_is_not_known_is_named(mesh_of: Callable[..., DeviceMesh]) -> None:
    config = transformers.LlamaConfig(num_attention_heads=4, **LLAMA)
    config.base_model_tp_plan = {"layers.*.self_attn.q_proj": "sideways"}
    match = r"gives model\.layers\.\*\.self_attn\.q_proj the style 'sideways'.*colwise, rowwise"
    with pytest.raises(ValueError, match=match):
        parallelize(_on_meta(config), mesh_of(4))
