"""What the simulated device costs: the same work on hpu and on the CPU, in one process.

Run with `lightning-gaudi simulate --cards 1 -- python benchmarks/simulator_vs_cpu.py`. See the
README.md beside for the method and for results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from interleaved import Comparison, exit_code, table
from torch import nn
from torch.nn import functional

Work = Callable[[], object]


def bert_layer_step(device: str) -> Work:
    """Forward, backward and AdamW of one layer of BERT-base on 8 sequences of 128 tokens."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    layer = BertLayer(BertConfig(attn_implementation="sdpa")).to(device).train()
    hidden = torch.randn(8, 128, 768).to(device)
    return _training_step(layer, lambda: _first(layer(hidden)).square().mean())


def mlp_step(device: str) -> Work:
    """Forward, backward and AdamW of 16 -> 32 -> 4 on 8 samples: the cost of calls, not of work."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(4, (8,)).to(device)
    return _training_step(mlp, lambda: functional.cross_entropy(mlp(inputs), labels))


def add(device: str) -> Work:
    """The sum of two 8 x 8 tensors."""
    left, right = (torch.randn(8, 8).to(device) for _ in range(2))
    return lambda: left + right


def attention(device: str) -> Work:
    """scaled_dot_product_attention, forward and backward: 8 x 12 heads, 128 tokens of 64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(8, 12, 128, 64).to(device).requires_grad_() for _ in range(3))
    upstream = torch.randn(8, 12, 128, 64).to(device)

    def step() -> object:
        attended = functional.scaled_dot_product_attention(q, k, v)
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


def main() -> int:
    """Measure, print a table, and return 1 if a ratio is above its limit."""
    if (
        not torch.accelerator.is_available()
        or torch.accelerator.current_accelerator().type != "hpu"
    ):
        print(
            "There is no hpu: run this through `lightning-gaudi simulate --cards 1 -- python ...`."
        )
        return 2
    torch.set_num_threads(1)
    comparisons = [
        Comparison(
            "BERT-base layer step (8 x 128)", bert_layer_step, limit=1.05, calls=1, rounds=15
        ),
        Comparison("add (8 x 8)", add, limit=1.5, calls=2000, rounds=31),
        Comparison("tiny MLP AdamW step", mlp_step, limit=1.5, calls=50, rounds=31),
        Comparison("SDPA forward and backward", attention, limit=1.1, calls=2, rounds=31),
    ]
    results = [comparison.measure("hpu", "cpu") for comparison in comparisons]
    print(table(results, "hpu", "cpu"))
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
