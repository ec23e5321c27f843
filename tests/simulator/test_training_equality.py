"""fp32 training on hpu equals training on the CPU bit for bit, dropout included."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining, T5Config, T5ForConditionalGeneration

NUM_STEPS = 20
VOCAB_SIZE = 96
BATCH_SIZE, NUM_TOKENS = 4, 16

Batch = dict[str, torch.Tensor]


class Mlp(nn.Module):
    """Two layers with dropout that return their loss, as the Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(inputs), labels)


def _mlp() -> tuple[nn.Module, Callable[[], Batch]]:
    def batch() -> Batch:
        inputs, labels = torch.randn(BATCH_SIZE, 16), torch.randint(4, (BATCH_SIZE,))
        return {"inputs": inputs, "labels": labels}

    return Mlp(), batch


def _bert() -> tuple[nn.Module, Callable[[], Batch]]:
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=NUM_TOKENS,
    )

    def batch() -> Batch:
        tokens = _tokens()
        lengths = torch.randint(NUM_TOKENS // 2, NUM_TOKENS + 1, (BATCH_SIZE, 1))
        return {
            "input_ids": tokens,
            "attention_mask": (torch.arange(NUM_TOKENS) < lengths).long(),
            "labels": tokens.where(torch.rand(tokens.shape) < 0.3, -100),
            "next_sentence_label": torch.randint(2, (BATCH_SIZE,)),
        }

    return BertForPreTraining(config), batch


def _t5() -> tuple[nn.Module, Callable[[], Batch]]:
    config = T5Config(
        vocab_size=VOCAB_SIZE,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    checkpoint = getattr(model, "activation_checkpointing_enable", None)  # named so since 5.23
    (checkpoint or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model, lambda: {"input_ids": _tokens(), "labels": _tokens()}


def _tokens() -> torch.Tensor:
    return torch.randint(1, VOCAB_SIZE, (BATCH_SIZE, NUM_TOKENS))


def _train(model: nn.Module, batches: list[Batch], device: str) -> tuple[torch.Tensor, nn.Module]:
    """Train a copy of `model`; returns the loss of every step and the copy, on the CPU."""
    model = copy.deepcopy(model).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    torch.manual_seed(1)
    for batch in batches:
        output = model(**{name: tensor.to(device) for name, tensor in batch.items()})
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), model.cpu()


@pytest.mark.slow_but("mlp", "bert")
@pytest.mark.parametrize("make", [_mlp, _bert, _t5], ids=["mlp", "bert", "t5-checkpointed"])
def test_losses_and_weights_equal_those_of_the_cpu(
    make: Callable[[], tuple[nn.Module, Callable[[], Batch]]],
) -> None:
    torch.manual_seed(0)
    model, batch = make()
    batches = [batch() for _ in range(NUM_STEPS)]
    losses_cpu, trained_cpu = _train(model, batches, "cpu")
    losses_hpu, trained_hpu = _train(model, batches, "hpu")
    torch.testing.assert_close(losses_hpu, losses_cpu, rtol=0, atol=0)
    expected = trained_cpu.state_dict()
    for name, weight in trained_hpu.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    assert losses_cpu[-5:].mean() < losses_cpu[:5].mean()


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "dropout_": lambda x: nn.functional.dropout(x, 0.5, inplace=True),
    "rand_like": torch.rand_like,
    "normal_": lambda x: x.normal_(),
    "bernoulli": torch.bernoulli,
    "multinomial": lambda x: torch.multinomial(x, 3),
    "randperm": lambda x: torch.randperm(50, device=x.device),
    "randint": lambda x: torch.randint(100, (50,), device=x.device),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_one_seed_gives_the_same_draws_on_both_devices(
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    source = torch.linspace(0.01, 0.99, 64).view(8, 8)
    results = []
    for device in ("cpu", "hpu"):
        torch.manual_seed(7)
        moved = source.clone().to(device)
        results.append([draw(moved).cpu().clone() for _ in range(2)])
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(*results[0])


def test_devices_draw_from_generators_of_their_own() -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    torch.rand(8, device="hpu")
    assert torch.equal(torch.rand(4), expected)


def test_generator_of_the_device_repeats_its_draws_from_a_saved_state() -> None:
    generator = torch.Generator("hpu").manual_seed(3)
    state = generator.get_state()
    first = torch.randn(4, device="hpu", generator=generator)
    assert torch.equal(first.cpu(), torch.randn(4, generator=torch.Generator().manual_seed(3)))
    generator.set_state(state)
    assert torch.equal(torch.randn(4, device="hpu", generator=generator), first)


def test_generator_of_the_cpu_seeds_tensors_of_the_device() -> None:
    def draw() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        made = torch.randn(4, device="hpu", generator=generator)
        return [made, torch.empty(4, device="hpu").uniform_(generator=generator)]

    first, second = draw()
    assert all(map(torch.equal, draw(), (first, second)))
    assert first.device.type == second.device.type == "hpu"
    assert 0 <= second.min() <= second.max() <= 1


def test_seeded_draws_repeat_through_the_random_state_of_the_device() -> None:
    state = torch.hpu.get_rng_state()
    first = torch.rand(4, device="hpu")
    torch.hpu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="hpu"), first)
