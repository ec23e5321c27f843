"""`torch.autocast("hpu", torch.bfloat16)`: what runs in bf16, as on Gaudi, and what stays fp32."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForPreTraining

VOCAB_SIZE, BATCH_SIZE, NUM_TOKENS, NUM_STEPS = 96, 4, 16, 20
MATMULS = ("mm", "addmm", "bmm", "baddbmm")


class DtypeRecorder(TorchDispatchMode):
    """Collects, for every aten operator that runs, the dtypes of its first tensor argument."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            self.dtypes[func.overloadpacket.__name__].add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=NUM_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",  # so that the softmax is an operator of its own
    )
    return BertForPreTraining(config)


def _batches() -> Iterator[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    while True:
        tokens = torch.randint(1, VOCAB_SIZE, (BATCH_SIZE, NUM_TOKENS))
        labels = torch.randint(2, (BATCH_SIZE,))
        yield {"input_ids": tokens, "labels": tokens, "next_sentence_label": labels}


def _loss(model: nn.Module, batch: dict[str, torch.Tensor], device: str) -> torch.Tensor:
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    with torch.autocast(device, torch.bfloat16):
        return model(**moved).loss


def test_matmuls_layer_norm_and_softmax_of_bert_run_in_bf16(model: nn.Module) -> None:
    model.to("hpu")
    with DtypeRecorder() as forward:
        loss = _loss(model, next(_batches()), "hpu")
    with DtypeRecorder() as backward:
        loss.backward()
    for seen in (forward.dtypes, backward.dtypes):
        matmuls = {name: seen[name] for name in MATMULS if name in seen}
        assert matmuls
        assert all(dtypes == {torch.bfloat16} for dtypes in matmuls.values()), matmuls
    assert forward.dtypes["native_layer_norm"] == {torch.bfloat16}
    assert forward.dtypes["_softmax"] == {torch.bfloat16}
    assert backward.dtypes["_softmax_backward_data"] == {torch.bfloat16}


def test_weights_gradients_and_optimizer_state_stay_fp32(model: nn.Module) -> None:
    model.to("hpu")
    optimizer = torch.optim.AdamW(model.parameters())
    loss = _loss(model, next(_batches()), "hpu")
    assert loss.dtype == torch.float32
    loss.backward()
    optimizer.step()
    weights = list(model.parameters())
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert {weight.grad.dtype for weight in weights if weight.grad is not None} == {torch.float32}
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.float32}


def test_outputs_of_modules_are_bf16(model: nn.Module) -> None:
    """Unlike on CUDA, where layer_norm and softmax run in fp32."""
    model.to("hpu")
    seen: dict[type, set[torch.dtype]] = defaultdict(set)

    def record(module: nn.Module, _: object, output: torch.Tensor) -> None:
        seen[type(module)].add(output.dtype)

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            module.register_forward_hook(record)
    _loss(model, next(_batches()), "hpu")
    assert seen[nn.Linear] == {torch.bfloat16}
    assert seen[nn.LayerNorm] == {torch.bfloat16}
    assert seen[nn.Embedding] == {torch.float32}


@pytest.mark.parametrize("name", ["linear", "matmul", "layer_norm", "softmax"])
def test_numbers_are_those_of_bf16_operands(name: str) -> None:
    """Bit for bit what the CPU computes from operands rounded to bf16, and not what fp32 gives."""
    torch.manual_seed(0)
    left, right = torch.randn(8, 16), torch.randn(16, 16)
    operators = {
        "linear": functional.linear,
        "matmul": torch.matmul,
        "layer_norm": lambda x, weight: functional.layer_norm(x, (16,), weight[0].float()),
        "softmax": lambda x, _: x.softmax(-1),
    }
    operator = operators[name]
    with torch.autocast("hpu", torch.bfloat16):
        actual = operator(left.to("hpu"), right.to("hpu")).cpu()
    # Of a layer_norm only the input is rounded.
    rounded = right if name == "layer_norm" else right.bfloat16()
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, operator(left.bfloat16(), rounded))
    assert not torch.equal(actual.float(), operator(left, right))


@pytest.mark.parametrize("name", ["cross_entropy", "mse_loss", "exp", "logsumexp"])
def test_losses_and_exponentials_run_in_fp32(name: str) -> None:
    logits = torch.randn(8, 16, device="hpu", dtype=torch.bfloat16)
    target = torch.arange(8, device="hpu")
    operators = {
        "cross_entropy": lambda x: functional.cross_entropy(x, target),
        "mse_loss": lambda x: functional.mse_loss(x, torch.zeros_like(x)),
        "exp": torch.exp,
        "logsumexp": lambda x: torch.logsumexp(x, -1),
    }
    with torch.autocast("hpu", torch.bfloat16):
        actual = operators[name](logits)
    assert actual.dtype == torch.float32


def test_operators_outside_autocast_keep_their_dtype() -> None:
    weight = torch.randn(4, 4, device="hpu")
    with torch.autocast("hpu", torch.bfloat16), torch.autocast("hpu", enabled=False):
        assert (weight @ weight).dtype == torch.float32
    assert (weight @ weight).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (weight @ weight).dtype == torch.float32


def test_losses_follow_those_of_bf16_autocast_on_the_cpu(model: nn.Module) -> None:
    """Within 0.2 % at every step: the CPU's autocast keeps layer_norm and softmax in fp32."""
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "hpu"):
        trained = copy.deepcopy(model).to(device)
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
        batches = _batches()
        losses[device] = []
        for _ in range(NUM_STEPS):
            loss = _loss(trained, next(batches), device)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[device].append(loss.item())
    assert losses["hpu"] == pytest.approx(losses["cpu"], rel=0.002)
    assert losses["hpu"] != losses["cpu"]
    assert losses["hpu"][-1] < losses["hpu"][0]
