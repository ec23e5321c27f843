"""Training by captured graphs: make_graphed_callables and ModuleCacher."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import _hpu_sim
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from lightning_gaudi.simulator import rules

hpu: Any = torch.hpu

pytestmark = pytest.mark.usefixtures("lazy")


class Block(nn.Module):
    """A layer of BERT, with the arguments that it is called with by name."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=16, num_attention_heads=2, intermediate_size=32,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
            attn_implementation="eager",
        )  # fmt: skip
        self.layer = BertLayer(config)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        runs.append(1)
        return {"scores": self.head(self.layer(x)) * scale, "scale": scale}


runs: list[int] = []
"""One entry for each time that the Python of `Block` ran."""


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


def _block(dropout: float = 0.0) -> Block:
    torch.manual_seed(0)
    return Block(dropout).to("hpu").train()


def _train(
    model: nn.Module,
    *,
    num_steps: int = 6,
    num_micro_batches: int = 1,
    set_to_none: bool = True,
    lengths: tuple[int, ...] = (4, 5),
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and parameters of a training with AdamW, over batches of some lengths in turn."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if not set_to_none:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    torch.manual_seed(2)
    losses = []
    for step in range(num_steps):
        for micro_batch in range(num_micro_batches):
            if hasattr(model, "set_iteration_count"):
                model.set_iteration_count(micro_batch)
            length = lengths[step % len(lengths)]
            x = torch.randn(2, length, 16, generator=generator).to("hpu")
            loss = model(x)["scores"].square().mean()
            loss.backward()
            losses.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        _hpu_sim.mark_step()
    return torch.stack(losses).tolist(), [p.detach().clone() for p in model.parameters()]


def _equal(one: Any, other: Any) -> bool:
    return one[0] == other[0] and all(
        torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True)
    )


def _cached(model: nn.Module, max_graphs: int = 10, **options: Any) -> nn.Module:
    return hpu.ModuleCacher(max_graphs)(model, allow_unused_input=True, **options)


@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"disable_tensor_cache": True}])
def test_a_cached_model_trains_as_the_model_does(options: dict[str, bool]) -> None:
    expected = _train(_block())
    assert len(runs) == 6
    assert _equal(_train(_cached(_block(), **options)), expected)
    assert len(runs) == 6 + 2, "one capture for each length"


@pytest.mark.parametrize("options", [{"dry_run": True}, {"disable_tensor_cache": True}])
def test_dropout_is_drawn_as_without_graphs(options: dict[str, bool]) -> None:
    # A capture that runs its operators draws once more: only what looks draws alike.
    expected = _train(_block(dropout=0.1))
    assert _equal(_train(_cached(_block(dropout=0.1), **options)), expected)
    assert not _equal(_train(_cached(_block(dropout=0.1))), expected)


def test_gradients_accumulate_in_memory_that_is_zeroed() -> None:
    expected = _train(_block(), num_micro_batches=3, set_to_none=False)
    cached = _cached(_block(), have_grad_accumulation=True)
    assert _equal(_train(cached, num_micro_batches=3, set_to_none=False), expected)
    assert len(runs) == 6 * 3 + 2 * 2, "graphs of its own for the first micro-batch"


def test_gradients_that_accumulate_from_none_are_reported() -> None:
    rules.set_mode("warn")
    expected = _train(_block(), num_micro_batches=2)
    with pytest.warns(rules.GaudiRuleWarning, match=r"graph-shared-gradients"):
        assert _equal(_train(_cached(_block()), num_micro_batches=2), expected)


def test_a_replay_compiles_nothing() -> None:
    model = _cached(_block())
    for _ in range(2):  # the first replay copies no inputs: they are those of the capture
        _train(model, num_steps=4, lengths=(4,))
    before = _hpu_sim.graph_stats()["num_compilations"]
    _train(model, num_steps=4, lengths=(4,))
    assert _hpu_sim.graph_stats()["num_compilations"] == before


def test_beyond_max_graphs_the_model_itself_trains() -> None:
    cached = _cached(_block(), max_graphs=1)
    _train(cached, lengths=(4, 5, 6))
    assert len(runs) == 1 + 4


def test_evaluation_and_no_grad_and_eager_mode_run_without_graphs() -> None:
    model = _cached(_block())
    x = torch.randn(2, 4, 16).to("hpu")
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    _hpu_sim.set_lazy(False)
    model(x)
    assert len(runs) == 3


def test_values_that_are_no_tensors_make_graphs_of_their_own() -> None:
    model, x = _cached(_block()), torch.randn(2, 4, 16).to("hpu")
    results = [model(x, scale=scale) for scale in (1.0, 2.0, 1.0)]
    assert [result["scale"] for result in results] == [1.0, 2.0, 1.0]
    assert torch.equal(results[0]["scores"], results[2]["scores"])
    assert len(runs) == 2


def test_a_copy_is_cached_if_the_model_is_to_stay() -> None:
    model = _block()
    cached = _cached(model, inplace=False)
    x = torch.randn(2, 4, 16).to("hpu")
    for _ in range(3):
        cached(x)
        model(x)
    assert len(runs) == 1 + 3
    assert cached.head.weight is model.head.weight


def test_only_frequent_inputs_are_captured_with_use_lfu() -> None:
    model = _cached(_block(), max_graphs=1, use_lfu=True)
    inputs = [torch.randn(2, length, 16).to("hpu") for length in (4, 5, 5)]
    model.capture_start()
    for x in inputs:
        model(x)
    model.capture_end()
    runs.clear()
    for x in inputs * 2:
        model(x)
    assert len(runs) == 2 + 1


def test_a_cached_model_can_be_copied_and_pickled() -> None:
    model, x = _cached(_block()), torch.randn(2, 4, 16).to("hpu")
    expected = model(x)["scores"]
    again = pickle.loads(pickle.dumps(model.cpu())).to("hpu")
    assert torch.equal(again(x)["scores"], expected)
    assert torch.equal(copy.deepcopy(model).to("hpu")(x)["scores"], expected)


def test_statistics_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    model = _cached(_block(), verbose=True, log_frequency=1)
    _train(model, num_steps=2, lengths=(4,))
    assert "graphs: 1, replays: 1" in capsys.readouterr().out
    model.verbose = False


class Unnamed(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0]


def test_what_cannot_be_cached_is_refused() -> None:
    with pytest.raises(AssertionError, match="got a DataParallel, whose collectives and hooks"):
        hpu.ModuleCacher()(nn.DataParallel(_block()))
    with pytest.raises(AssertionError, match=r"does not support the argument \*tensors"):
        hpu.ModuleCacher()(Unnamed())


class Checkpointing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


def test_gradient_checkpointing_is_refused() -> None:
    model = hpu.ModuleCacher()(Checkpointing().to("hpu"))
    with pytest.raises(RuntimeError, match="Gradient checkpointing is not supported"):
        model(torch.ones(2, 4, device="hpu", requires_grad=True))


def test_graphed_callables_train_as_they_do_without_graphs() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 8).to("hpu"), nn.Linear(8, 2).to("hpu")
    models = [(first, second), (copy.deepcopy(first), copy.deepcopy(second))]
    samples = (
        (torch.randn(3, 4).to("hpu").requires_grad_(),),
        (torch.randn(3, 8).to("hpu").requires_grad_(),),
    )
    models[1] = hpu.make_graphed_callables(models[1], samples, warmups=1)
    data = [torch.randn(3, 4).to("hpu").requires_grad_() for _ in range(4)]
    gradients = []
    for one, other in models:
        losses = []
        for x in data:
            x.grad = None
            for parameter in [*one.parameters(), *other.parameters()]:
                parameter.grad = None
            loss = other(one(x).relu()).square().sum()
            loss.backward()
            tensors = [loss, x.grad, one.weight.grad, other.bias.grad]
            losses += [tensor.detach().clone() for tensor in tensors]
        gradients.append(losses)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_graphed_module_runs_itself_in_another_mode() -> None:
    model = nn.Dropout(0.5).train()
    graphed = hpu.make_graphed_callables(model, (torch.ones(8, device="hpu", requires_grad=True),))
    x = torch.full((8,), 2.0, device="hpu")
    assert graphed is model
    assert set(model(x).tolist()) <= {0.0, 4.0}
    assert model.eval()(x).tolist() == [2.0] * 8


@pytest.mark.slow_but("True")
@pytest.mark.parametrize("disable_tensor_cache", [False, True])
def test_unused_inputs_are_an_error_unless_allowed(disable_tensor_cache: bool) -> None:
    def use_one(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * 2,)

    sample = tuple(torch.ones(2, device="hpu", requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        hpu.make_graphed_callables(use_one, sample, disable_tensor_cache=disable_tensor_cache)
    gc.collect()
    graphed = hpu.make_graphed_callables(
        use_one, sample, allow_unused_input=True, disable_tensor_cache=disable_tensor_cache
    )
    inputs = [torch.full((2,), 3.0, device="hpu", requires_grad=True) for _ in range(2)]
    (result,) = graphed(*inputs)
    result.sum().backward()
    assert result.tolist() == [6.0, 6.0]
    assert [x.grad.tolist() for x in inputs] == [[2.0, 2.0], [0.0, 0.0]]


def test_misuse_of_graphed_callables_is_refused() -> None:
    x = torch.ones(2, 4, device="hpu")
    hooked = nn.Linear(4, 4).to("hpu")
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="Linear has hooks"):
        hpu.make_graphed_callables(hooked, (x,))
    buffered = nn.BatchNorm1d(4).to("hpu")
    buffered.running_mean.requires_grad_()
    with pytest.raises(AssertionError, match="A buffer of BatchNorm1d requires gradients"):
        hpu.make_graphed_callables(buffered, (x,))
    with pytest.raises(AssertionError, match="got float among them"):
        hpu.make_graphed_callables(torch.add, (x, 1.0))
    _hpu_sim.set_lazy(False)
    with pytest.raises(RuntimeError, match="available in lazy mode only"):
        hpu.make_graphed_callables(torch.relu, (x,))
