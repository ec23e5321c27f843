"""Mixtures of experts of transformers, as they come: routing counts tokens with integers."""

from __future__ import annotations

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_train_and_generate_as_on_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model = MixtralForCausalLM(config).to(dtype)
    tokens = torch.randint(0, 64, (2, 8))
    results = []
    for device in ("cpu", "hpu"):
        model, here = model.to(device), tokens.to(device)
        model.zero_grad()
        loss = model(input_ids=here, labels=here).loss
        loss.backward()
        made = model.generate(here, max_new_tokens=4, do_sample=False, pad_token_id=0)
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        results.append([each.detach().cpu().clone() for each in (loss, made, *grads)])
    assert len(results[0]) > 10
    assert all(map(torch.equal, *results))
