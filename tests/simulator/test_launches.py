"""How often the card is told to run something: operators, graphs, compiled graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import _hpu_sim
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_gaudi import simulator

hpu = torch.hpu


def _launches(work: Callable[[], object]) -> int:
    simulator.reset_statistics()
    work()
    return simulator.launches()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).to("hpu")


# Eager mode


WORK: dict[str, tuple[int, Callable[[torch.Tensor], object]]] = {
    "nothing": (0, lambda x: None),
    "an unboxed operator": (1, lambda x: x + x),
    "one in place": (1, lambda x: x.add_(x)),
    "a boxed operator": (1, lambda x: x.exp()),
    "into an out": (1, lambda x: torch.exp(x, out=torch.empty(4, 4, device="hpu"))),
    "a composition": (2, lambda x: functional.mse_loss(x, x) * 2),
    "a linear layer": (1, lambda x: functional.linear(x, x, x[0])),
    "views": (0, lambda x: x[1:, ::2].t().expand(3, 2, 3).detach().unsqueeze(0)),
    "views in place": (0, lambda x: x.view(2, 8).t_().squeeze_().unsqueeze_(0)),
    "several views": (0, lambda x: (x.split(2), x.chunk(2), x.unbind(), x.diagonal())),
    "a copy that a view needs": (1, lambda x: x.t().reshape(16)),
    "no copy": (0, lambda x: (x.contiguous(), x.to("hpu"), x.float())),
    "a copy on the card": (1, lambda x: x.clone()),
    "another type": (1, lambda x: x.bfloat16()),
    "memory": (0, lambda x: (torch.empty_like(x), x.new_empty(3), x.resize_(2, 2))),
    "memory that is filled": (1, lambda x: torch.zeros(3, device="hpu")),
    "to the card": (0, lambda x: torch.ones(2).to("hpu")),
    "to the host": (0, lambda x: x.cpu()),
    "reading a value": (1, lambda x: x.sum().item()),
    "questions": (0, lambda x: (x.is_set_to(x), x.is_contiguous(), x.is_pinned())),
    "a list that the card takes as one": (1, lambda x: torch._foreach_add_([x[0], x[1]], 1)),
    "a list that it does not": (2, lambda x: torch._foreach_norm([x[0], x[1]])),
}
"""Launches in eager mode, and of what."""


@pytest.mark.parametrize("name", WORK)
def test_each_operator_that_computes_is_a_launch(name: str, x: torch.Tensor) -> None:
    expected, work = WORK[name]
    assert _launches(lambda: work(x)) == expected


def test_backward_and_optimizer_launch_too() -> None:
    layer = nn.Linear(4, 4).to("hpu")
    inputs = torch.ones(2, 4, device="hpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(inputs).sum()
    # ones_like(loss); the bias's sum and the weight's product.
    assert _launches(loss.backward) == 3
    assert _launches(optimizer.step) == 2


def test_threads_count_together(x: torch.Tensor) -> None:
    def work() -> None:
        for _ in range(1000):
            x.exp()

    def in_threads() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert _launches(in_threads) == 4000


# Attention


def _attend(
    device_layout: str, dtype: torch.dtype, mask: str | None, num_key_heads: int, batch: int
) -> tuple[int, int]:
    """The launches of attention forward and backward."""
    shapes = [(batch, 16, heads, 8) for heads in (4, num_key_heads, num_key_heads)]
    heads_first = [torch.randn(shape).to("hpu", dtype).transpose(1, 2) for shape in shapes]
    if device_layout == "heads first":
        heads_first = [part.contiguous() for part in heads_first]
    query, key, value = (part.requires_grad_() for part in heads_first)
    allowed = torch.ones(16, 16, dtype=torch.bool, device="hpu").tril()
    masks = {"bool": allowed, "float": allowed.to(dtype).log()}
    simulator.reset_statistics()
    result = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=masks.get(mask or ""),
        is_causal=mask == "causal",
        enable_gqa=num_key_heads != 4,
    )
    num_forward = simulator.launches()
    upstream = torch.ones_like(result)
    simulator.reset_statistics()
    torch.autograd.grad(result, (query, key, value), upstream)
    return num_forward, simulator.launches()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("num_key_heads", [4, 2])
@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
def test_attention_launches_what_its_composition_does(
    layout: str, dtype: torch.dtype, mask: str | None, num_key_heads: int, batch: int
) -> None:
    """A card composes it; here it is one kernel of the CPU's, whose launches are known."""
    with sdpa_kernel(SDPBackend.MATH):
        composed = _attend(layout, dtype, mask, num_key_heads, batch)
    assert min(composed) > 5
    assert _attend(layout, dtype, mask, num_key_heads, batch) == composed


# Graphs


@pytest.mark.usefixtures("lazy")
def test_a_lazy_graph_is_one_launch_and_a_pending_one_none(x: torch.Tensor) -> None:
    _hpu_sim.mark_step()
    assert _launches(lambda: [x.add(1).exp().sin() for _ in range(3)]) == 0
    assert _launches(_hpu_sim.mark_step) == 1
    assert _launches(_hpu_sim.mark_step) == 0  # nothing to run
    assert _launches(lambda: x.sum().item()) == 1
    assert _launches(lambda: torch._foreach_add_([x], 1)) == 0


@pytest.mark.usefixtures("lazy")
def test_a_replay_of_a_captured_graph_is_one_launch(x: torch.Tensor) -> None:
    captured = hpu.HPUGraph()
    with hpu.graph(captured):
        x.add(1).exp().sin()
    assert _launches(lambda: [captured.replay() for _ in range(3)]) == 3
    assert _launches(lambda: (x.exp(), _hpu_sim.mark_step())) == 1


def test_an_operator_that_is_refused_is_no_launch(x: torch.Tensor) -> None:
    simulator.reset_statistics()
    with pytest.raises(RuntimeError, match="move it with"):
        x.exp().add(torch.ones(4, 4))
    assert simulator.launches() == 1


def test_an_operator_that_fails_does_not_stop_the_count(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="got no tensors"):
        torch.ops.hpu.optimizer_lars([], [], [], 0.1, 0.1, 0.1, x)
    assert _launches(lambda: x + x) == 1
