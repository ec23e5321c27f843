"""Compares `TextGenerator` with transformers' `generate`, both on the HPU.

A simulated HPU runs a graph operator by operator, and counts it as one launch. So launches, graphs
and waits are those of a card, but the speed is not: here a launch costs next to nothing, and a
compiled call has a cost of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM

from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import Row, ratio
from lightning_gaudi import vendor
from lightning_gaudi.inference import LeftPadded, TextGenerator, pad_left

BUCKETS = (16, 32)
NUM_TOKENS = 32
NUM_ROUNDS = 5
VOCABULARY, PAD = 512, 3
BATCH_SIZES = (1, 8)
LAUNCHES_A_TOKEN = 1.2
"""The limit: one launch for each token, and a few for a batch."""
OURS, THEIRS = "TextGenerator", "generate"


@dataclass
class Side:
    """A way to generate, and its counts."""

    generate: Callable[[LeftPadded], Tensor]
    counts: dict[str, int] = field(default_factory=dict)

    def run(self, batches: list[LeftPadded]) -> float:
        """Generates for some batches, adds to the counts, and returns the seconds that it took."""
        before = counted()
        start = perf_counter()
        for batch in batches:
            self.generate(batch).cpu()
        seconds = perf_counter() - start
        for name, value in counted().items():
            self.counts[name] = self.counts.get(name, 0) + value - before[name]
        return seconds


def counted() -> dict[str, int]:
    """Returns the launches, graphs and waits of this process so far."""
    found = {name: vendor.metric(name) for name in ("launch", "graph_compilation", "host_sync")}
    return {name: int(stats["TotalNumber"]) for name, stats in found.items() if stats is not None}


def prompts(batch_size: int, seed: int) -> LeftPadded:
    """Returns a batch of random prompts of mixed length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, BUCKETS[-1] + 1, (batch_size,), generator=generator).tolist()
    texts = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    # Padded to the longest text, as by a tokenizer; our generator then pads to a bucket.
    longest = max(lengths)
    return pad_left(texts, (longest,), PAD)


def make_sides(model: Any) -> dict[str, Side]:
    """Returns both ways to generate, for the same model."""
    generator = TextGenerator(model, buckets=BUCKETS, eos_token_id=())

    def theirs(batch: LeftPadded) -> Tensor:
        out: Tensor = model.generate(
            input_ids=batch.input_ids.to("hpu"),
            attention_mask=batch.attention_mask.to("hpu"),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
        )
        return out[:, batch.input_ids.shape[1] :]

    return {OURS: Side(lambda batch: generator(*batch, NUM_TOKENS)), THEIRS: Side(theirs)}


def compare(model: Any, batch_size: int, num_rounds: int) -> list[Row]:
    """Returns the rows of a batch size, measured after graphs were compiled."""
    sides = make_sides(model)
    for side in sides.values():
        side.run([prompts(batch_size, seed) for seed in range(4)])
        side.counts.clear()
    batches = [prompts(batch_size, seed) for seed in range(10, 13)]
    times = in_turns((OURS, THEIRS), num_rounds, lambda name: sides[name].run(batches))
    num_steps = len(batches) * NUM_TOKENS
    ours, theirs = sides[OURS].counts, sides[THEIRS].counts

    def a_token(name: str, limit: float | None = None) -> Row:
        mine, other = (counts[name] / (num_steps * num_rounds) for counts in (ours, theirs))
        title = f"batch {batch_size}: {name}"
        return Row(title, mine, "a token", limit=limit, detail=f"{THEIRS}: {other:.2f}")

    speeds = [num_steps * batch_size / median(times[name]) for name in (OURS, THEIRS)]
    graphs = Row(
        f"batch {batch_size}: compiled for new prompts",
        ours["graph_compilation"],
        "graphs",
        limit=0,
        detail=f"{THEIRS}: {theirs['graph_compilation']}",
    )
    return [
        ratio(
            f"batch {batch_size}: tokens a second, times those of {THEIRS}",
            times[THEIRS],
            times[OURS],
            detail=" against ".join(f"{speed:.0f}" for speed in speeds),
        ),
        a_token("launch", LAUNCHES_A_TOKEN),
        a_token("host_sync"),
        graphs,
    ]


def measure(effort: Effort) -> list[Row]:
    """Measures a small Bloom, with one prompt and with eight at a time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": VOCABULARY}
    config = BloomConfig(**sizes, pad_token_id=PAD, eos_token_id=None, bos_token_id=1)
    model = BloomForCausalLM(config).eval().to("hpu")
    model.generation_config.eos_token_id = None
    num_rounds = effort.rounds(NUM_ROUNDS)
    return [row for size in BATCH_SIZES for row in compare(model, size, num_rounds)]
