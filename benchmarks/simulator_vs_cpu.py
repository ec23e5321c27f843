"""Measures the cost of the simulated device: the same work on hpu and on the CPU, in one process.

Some steps do real work. Others do next to none, and show the cost of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness.interleaved import Comparison, Effort
from benchmarks.harness.rows import Row
from lightning_gaudi.attention import fused_sdpa

Work = Callable[[], object]


def bert_layer_step(device: str) -> Work:
    """Returns a training step of one layer of BERT-base, on 8 sequences of 128 tokens."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    layer = BertLayer(BertConfig(attn_implementation="sdpa")).to(device).train()
    hidden = torch.randn(8, 128, 768).to(device)
    return _training_step(layer, lambda: _first(layer(hidden)).square().mean())


def mlp_step(device: str) -> Work:
    """Returns a training step of layers of 16, 32 and 4 on 8 samples, to show the cost of calls."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(4, (8,)).to(device)
    return _training_step(mlp, lambda: functional.cross_entropy(mlp(inputs), labels))


def add(device: str) -> Work:
    """Returns a call that adds two 8 x 8 tensors."""
    left, right = (torch.randn(8, 8).to(device) for _ in range(2))
    return lambda: left + right


def attention(device: str) -> Work:
    """Returns forward and backward of scaled_dot_product_attention: 8 x 12 heads, 128 x 64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(8, 12, 128, 64).to(device).requires_grad_() for _ in range(3))
    upstream = torch.randn(8, 12, 128, 64).to(device)

    def step() -> object:
        attended = functional.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(attended, (q, k, v), upstream)

    return step


def fused_attention(device: str, dropout_p: float = 0.0) -> Work:
    """The same by the vendor's kernel on hpu, and by torch's own choice on the CPU."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(8, 12, 128, 64).to(device).requires_grad_() for _ in range(3))
    upstream = torch.randn(8, 12, 128, 64).to(device)
    attend = fused_sdpa if device == "hpu" else functional.scaled_dot_product_attention

    def step() -> object:
        attended = attend(q, k, v, dropout_p=dropout_p)
        return torch.autograd.grad(attended, (q, k, v), upstream)

    return step


def _training_step(module: nn.Module, loss: Callable[[], torch.Tensor]) -> Work:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _first(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


COMPARISONS = (
    Comparison("BERT-base layer step (8 x 128)", bert_layer_step, limit=1.05, calls=1, rounds=15),
    Comparison("add (8 x 8)", add, limit=1.5, calls=2000, rounds=31),
    Comparison("tiny MLP AdamW step", mlp_step, limit=1.5, calls=50, rounds=31),
    Comparison("SDPA forward and backward", attention, limit=1.1, calls=2, rounds=31),
    Comparison(
        "fused attention forward and backward", fused_attention, limit=1.05, calls=2, rounds=31
    ),
    Comparison(
        "fused attention with dropout, forward and backward",
        partial(fused_attention, dropout_p=0.1),
        limit=1.15,
        calls=2,
        rounds=31,
    ),
)


def measure(effort: Effort) -> list[Row]:
    """Measures each work on both devices."""
    torch.set_num_threads(1)
    return [comparison.measure("hpu", "cpu", effort) for comparison in COMPARISONS]
