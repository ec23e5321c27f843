"""The card's generator: seeds, states, forks."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from lightning_gaudi._core import vendor


def _draw() -> torch.Tensor:
    return torch.rand(64, device="hpu").cpu()


def test_torch_manual_seed_seeds_the_card() -> None:
    torch.manual_seed(1234)
    first = _draw()
    assert not torch.equal(_draw(), first)
    torch.manual_seed(1234)
    assert torch.equal(_draw(), first)
    torch.manual_seed(1235)
    assert not torch.equal(_draw(), first)


def test_seeding_the_card_leaves_the_cpu_alone() -> None:
    state = torch.get_rng_state()
    vendor.manual_seed(7)
    assert torch.equal(torch.get_rng_state(), state)
    first = _draw()
    vendor.manual_seed(7)
    assert torch.equal(_draw(), first)


def test_state_goes_to_the_host_and_back() -> None:
    state = vendor.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first, second = _draw(), _draw()
    vendor.set_rng_state(state)
    assert torch.equal(_draw(), first)
    assert torch.equal(_draw(), second)


def test_there_is_one_state_for_each_process() -> None:
    states = torch.hpu.get_rng_state_all()
    assert len(states) == 1
    assert torch.equal(states[0], vendor.get_rng_state())


def test_fork_rng_restores_the_card() -> None:
    before = vendor.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="hpu"):
        torch.manual_seed(1)
        _draw()
    assert torch.equal(vendor.get_rng_state(), before)


def test_dropout_follows_the_seed_and_scales() -> None:
    ones = torch.ones(64, 64, device="hpu")
    torch.manual_seed(5)
    first = torch.nn.functional.dropout(ones, 0.5).cpu()
    torch.manual_seed(5)
    assert torch.equal(torch.nn.functional.dropout(ones, 0.5).cpu(), first)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (first == 0).float().mean() < 0.6


def test_checkpointed_activations_repeat_their_dropout() -> None:
    """Recomputation in backward draws the same mask only if the card's state is kept.

    torch keeps it where the device module says that it is initialized.
    """
    torch.hpu.init()
    values = torch.ones(64, device="hpu", requires_grad=True)
    output = checkpoint(torch.nn.functional.dropout, values, 0.5, use_reentrant=False)
    output.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad.cpu(), output.detach().cpu())
