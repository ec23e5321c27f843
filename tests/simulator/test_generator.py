"""Random numbers of the card: the CPU's algorithm, from a stream of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import _hpu_sim
import pytest
import torch
from torch.nn import functional


@pytest.fixture
def generator() -> torch.Generator:
    return _hpu_sim.default_generator()


@pytest.mark.parametrize(
    "draw",
    [
        lambda device: torch.randn(5, device=device),
        lambda device: torch.rand(5, device=device),
        lambda device: torch.randint(9, (5,), device=device),
        lambda device: torch.randperm(9, device=device),
        lambda device: torch.empty(5, device=device).exponential_(),
        lambda device: torch.bernoulli(torch.full((5,), 0.5, device=device)),
        lambda device: functional.dropout(torch.ones(9, device=device), 0.5),
        lambda device: torch.native_dropout(torch.ones(9, device=device), 0.3, True)[0],
        lambda device: torch.native_dropout(torch.ones(9, device=device).half(), 0.3, None)[0],
        lambda device: torch.rrelu(-torch.ones(5, device=device), training=True),
        lambda device: torch.multinomial(torch.ones(9, device=device), 4),
    ],
    ids=lambda draw: None,
)
def test_draws_are_those_of_the_cpu_after_one_seed(
    draw: Callable[[str], torch.Tensor], generator: torch.Generator
) -> None:
    torch.default_generator.manual_seed(3)
    generator.manual_seed(3)
    for _ in range(2):  # the second continues the first
        assert torch.equal(draw("hpu").cpu(), draw("cpu"))


def test_draws_leave_the_stream_of_the_cpu_alone(generator: torch.Generator) -> None:
    torch.default_generator.manual_seed(3)
    state = torch.get_rng_state()
    functional.dropout(torch.ones(9, device="hpu"), 0.5)
    torch.randn(5, device="hpu")
    assert torch.equal(torch.get_rng_state(), state)
    device_state = generator.get_state()
    torch.randn(5)
    assert torch.equal(generator.get_state(), device_state)


def _attend(dropout: float = 0.0) -> torch.Tensor:
    # Long enough for another thread to draw meanwhile.
    query = torch.ones(2, 4, 256, 64, device="hpu", requires_grad=True)
    attended = functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)
    attended.sum().backward()
    return attended


DRAWS: dict[str, Callable[[], object]] = {
    "attention": _attend,
    "attention with dropout": lambda: _attend(0.5),
    "dropout": lambda: functional.dropout(torch.ones(2**18, device="hpu"), 0.5),
    "native_dropout": lambda: torch.native_dropout(torch.ones(2**18, device="hpu"), 0.5, True),
}
"""Operators that torch says are random, and that take no generator, or consist of such."""


@pytest.mark.slow_but("dropout", "native_dropout")
@pytest.mark.parametrize("name", DRAWS)
def test_another_thread_draws_what_its_seed_says_meanwhile(name: str) -> None:
    """The CPU's default generator is everybody's: the card must not touch it for a moment."""
    torch.default_generator.manual_seed(7)
    thread = threading.Thread(target=lambda: [DRAWS[name]() for _ in range(20)])
    thread.start()
    drawn = []
    while thread.is_alive():
        drawn.append(torch.rand(1))
    thread.join()
    expected = torch.rand(len(drawn), generator=torch.Generator().manual_seed(7))
    assert torch.equal(torch.cat(drawn), expected)


@pytest.mark.parametrize("name", DRAWS)
def test_only_dropout_draws_and_from_the_stream_of_the_card(
    name: str, generator: torch.Generator
) -> None:
    of_host, of_card = torch.get_rng_state(), generator.get_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), of_host)
    assert torch.equal(generator.get_state(), of_card) == (name == "attention")


@pytest.mark.parametrize("train", [False, True, None])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(0,), (5, 7)])
def test_native_dropout_is_that_of_the_cpu(
    shape: tuple[int, ...], p: float, train: bool | None, generator: torch.Generator
) -> None:
    source = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("hpu", "cpu"):
        torch.default_generator.manual_seed(3)
        generator.manual_seed(3)
        inputs = source.to(device).requires_grad_()
        output, mask = torch.native_dropout(inputs * 1, p, train)
        output.sum().backward()
        results.append((output.detach(), mask, inputs.grad))
    for on_card, on_host in zip(*results, strict=True):
        assert on_card.dtype == on_host.dtype
        assert torch.equal(on_card.cpu(), on_host)


def test_what_torch_has_on_the_cpu_that_draws_without_a_generator_is_known() -> None:
    """A new one of torch's would raise: see csrc/aten/random.cpp."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        operator, _, overload = name.partition(".")
        if operator.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CPU"
        ):
            op = getattr(getattr(torch.ops.aten, operator[6:]), overload or "default")
            arguments = [str(argument.type) for argument in op._schema.arguments]
            if torch.Tag.nondeterministic_seeded in op.tags and not any(
                "Generator" in kind for kind in arguments
            ):
                found.add(operator)
    known = {"native_dropout", "_scaled_dot_product_flash_attention_for_cpu", "_fused_sdp_choice"}
    assert found == {f"aten::{name}" for name in known}


def test_generator_says_its_device_and_seed(generator: torch.Generator) -> None:
    assert generator.device == torch.device("hpu", 0)
    generator.manual_seed(11)
    assert generator.initial_seed() == 11
    assert generator.seed() == generator.initial_seed()


def test_saved_state_repeats_the_draws(generator: torch.Generator) -> None:
    state = generator.get_state()
    assert state.device.type == "cpu"
    first = torch.randn(5, device="hpu")
    generator.set_state(state)
    assert torch.equal(torch.randn(5, device="hpu"), first)


def test_own_generator_is_apart_from_the_default_one(generator: torch.Generator) -> None:
    state = generator.get_state()
    own = torch.Generator("hpu").manual_seed(5)
    drawn = torch.randn(5, device="hpu", generator=own)
    assert torch.equal(drawn.cpu(), torch.randn(5, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(generator.get_state(), state)


def test_clone_continues_apart() -> None:
    own = torch.Generator("hpu").manual_seed(5)
    clone = own.clone_state()
    first = torch.randn(5, device="hpu", generator=own)
    assert torch.equal(torch.randn(5, device="hpu", generator=clone), first)


def test_generator_of_another_card_is_refused() -> None:
    with pytest.raises(RuntimeError, match="hpu:2 does not exist in this process"):
        torch.Generator("hpu:2")


def test_a_seed_and_an_offset_are_a_random_state_of_their_own():
    torch.manual_seed(5)
    torch.hpu.set_rng_ctx("philox")
    try:
        state = torch.hpu.get_rng_state()
        assert state.view(torch.int64).tolist() == [5, 0]
        draws = []
        for offset in (0, 4, 2**40, 0):
            state.view(torch.int64)[1] = offset
            torch.hpu.set_rng_state(state)
            assert torch.equal(torch.hpu.get_rng_state(), state)
            draws.append(torch.rand(4, device="hpu").tolist())
        assert draws[0] == draws[3]
        assert draws[0] != draws[1] != draws[2]
        torch.manual_seed(6)
        assert torch.hpu.get_rng_state().view(torch.int64).tolist() == [6, 0]
        with pytest.raises(RuntimeError, match=r"a random state has 16 bytes.*got 8"):
            torch.hpu.set_rng_state(state[:8])
    finally:
        torch.hpu.unset_rng_ctx("philox")
    assert torch.hpu.get_rng_state().numel() > 16
    with pytest.raises(ValueError, match="context 'philox', got 'mersenne'"):
        torch.hpu.set_rng_ctx("mersenne")
