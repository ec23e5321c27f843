"""Text of models with experts, whose routing is a matter of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from lightning_gaudi.inference import TextGenerator
from lightning_gaudi.inference.checks import check_experts

NUM_NEW = 6


def _mixtral(experts: str | None) -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    if experts is not None:
        model.set_experts_implementation(experts)
    return model


@pytest.mark.slow_but("None-none", "eager-none")
@pytest.mark.filterwarnings("ignore:aten..(histc|_grouped_mm|nonzero)")
@pytest.mark.parametrize(
    ("experts", "engine"),
    [(None, "compile"), ("batched_mm", "compile"), (None, "none"), ("eager", "none")],
)
def test_tokens_equal_those_of_a_cpu(experts: str | None, engine: Any) -> None:
    prompts = torch.randint(2, 64, (2, 2, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 5, dtype=torch.long)
    model = _mixtral(experts)
    settings = {"do_sample": False, "max_new_tokens": NUM_NEW}
    expected = [model.generate(ids, attention_mask=mask, **settings)[:, 5:] for ids in prompts]
    generator = TextGenerator(model.to("hpu"), engine)
    found = [generator(ids.to("hpu"), mask.to("hpu"), NUM_NEW).cpu() for ids in prompts]
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.mark.parametrize(
    ("experts", "engine"), [("eager", "compile"), ("eager", "graph"), ("grouped_mm", "graph")]
)
def test_experts_that_wait_are_refused_in_graphs(experts: str, engine: str) -> None:
    message = f"experts_implementation='{experts}', whose sizes.*set_experts_implementation"
    with pytest.raises(ValueError, match=message):
        check_experts(_mixtral(experts), engine)
