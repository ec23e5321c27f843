"""Hooks of DistributedDataParallel that compress or put off the exchange of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)

from lightning_gaudi.simulator import collective_stats, reset_statistics
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import NUM_STEPS, SEED, Case, Regression, loader

Weights = dict[str, Tensor]
NUM_RANKS = 2
LOCAL_FROM, PERIOD = 8, 4


def _power_sgd() -> Any:
    # Of full rank and for every matrix: the approximation of a gradient is the gradient.
    return powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=16, start_powerSGD_iter=2, min_compression_rate=0.0
    )


def _local_sgd() -> Any:
    return PostLocalSGDState(None, None, LOCAL_FROM, post_local_gradient_allreduce=False)


def _cases() -> dict[str, Case]:
    hooks: dict[str, dict[str, Any]] = {
        "none": {},
        "fp16": {"ddp_comm_hook": default_hooks.fp16_compress_hook},
        "bf16": {"ddp_comm_hook": default_hooks.bf16_compress_hook},
        "power_sgd": {
            "ddp_comm_state": _power_sgd(),
            "ddp_comm_hook": powerSGD_hook.powerSGD_hook,
        },
        "wrapped": {
            "ddp_comm_state": _power_sgd(),
            "ddp_comm_hook": powerSGD_hook.powerSGD_hook,
            "ddp_comm_wrapper": default_hooks.bf16_compress_wrapper,
        },
        "local_sgd": {
            "ddp_comm_state": _local_sgd(),
            "ddp_comm_hook": post_localSGD_hook,
            "model_averaging_period": PERIOD,
        },
    }
    return {name: Case(args=("sgd",), ddp=arguments) for name, arguments in hooks.items()}


def _fit(rank: int) -> dict[str, tuple[Weights, int]]:
    """The weights, and the bytes that were all-reduced."""
    found = {}
    for name, case in _cases().items():
        reset_statistics()
        weights = case.fit(NUM_RANKS)[0].state_dict()
        found[name] = (weights, collective_stats()["all_reduce"]["bytes"])
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Weights, int]]]:
    return run_trainers(_fit, tmp_path_factory.mktemp("ranks"), num_ranks=NUM_RANKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tolerance"),
    # Of the way that the weights went: 11 bits of a gradient, 8 bits, rounding in fp32, and 8 bits
    # of a gradient and of its two factors.
    [("fp16", 2**-10), ("bf16", 2**-7), ("power_sgd", 1e-5), ("wrapped", 2**-5)],
)
def test_compressed_gradients_train_all_ranks_alike(
    ranks: list[Any], name: str, tolerance: float
) -> None:
    expected = _flat(Case(args=("sgd",)).fit(1, accelerator="cpu")[0].state_dict())
    first, second = (_flat(found[name][0]) for found in ranks)
    assert torch.equal(first, second)
    torch.manual_seed(SEED)
    moved = expected - _flat(Regression().state_dict())
    off = first - expected
    assert off.norm() < tolerance * moved.norm()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compressed_gradients_have_two_bytes_each(ranks: list[Any], name: str) -> None:
    num_weights = sum(weight.numel() for weight in Regression().parameters())
    saved = [found["none"][1] - found[name][1] for found in ranks]
    assert saved == [NUM_STEPS * num_weights * 2] * NUM_RANKS


def test_post_local_sgd_averages_the_weights_now_and_then(ranks: list[Any]) -> None:
    expected = _train_by_local_sgd()
    for rank, weights in enumerate(expected):
        torch.testing.assert_close(_flat(ranks[rank]["local_sgd"][0]), weights, rtol=0, atol=1e-6)
    assert not torch.equal(*expected)


def _train_by_local_sgd() -> list[Tensor]:
    """By hand, on the CPU; the weights of each rank, which part ways after the last average."""
    models = []
    for _ in range(NUM_RANKS):
        torch.manual_seed(SEED)
        models.append(Regression("sgd"))
    optimizers = [model.configure_optimizers() for model in models]
    batches = zip(*(loader(rank, NUM_RANKS) for rank in range(NUM_RANKS)), strict=True)
    for step, parts in enumerate(batches):
        for model, part in zip(models, parts, strict=True):
            model.zero_grad()
            model.training_step(part, step).backward()
        if step < LOCAL_FROM:
            _average([[parameter.grad for parameter in model.parameters()] for model in models])
        for optimizer in optimizers:
            optimizer.step()
        if step >= LOCAL_FROM and (step - LOCAL_FROM) % PERIOD == 0:
            _average([[parameter.data for parameter in model.parameters()] for model in models])
    assert step == NUM_STEPS - 1
    return [_flat(model.state_dict()) for model in models]


def _average(of_ranks: list[list[Any]]) -> None:
    for tensors in zip(*of_ranks, strict=True):
        mean = torch.stack(tensors).mean(0)
        for tensor in tensors:
            tensor.copy_(mean)


def _flat(weights: Weights) -> Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])
