"""Text of `TextGenerator` beside that of transformers' `generate`, both on the HPU.

Run with `lightning-gaudi simulate --cards 1 -- python benchmarks/generation.py`, in eager mode and
with PT_HPU_LAZY_MODE=1. A simulated HPU runs a graph operation by operation, and counts it as one
launch: the launches, graphs and waits are what a card would have, the speed is not. See the
README.md beside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM

from lightning_gaudi import vendor
from lightning_gaudi.inference import LeftPadded, TextGenerator, pad_left

BUCKETS = (16, 32)
NUM_TOKENS = 32
NUM_ROUNDS = 5
VOCABULARY, PAD = 512, 3
BATCH_SIZES = (1, 8)
LAUNCHES_A_TOKEN = 1.2
"""One for each token, and a few for a batch."""
OURS, THEIRS = "TextGenerator", "generate"


@dataclass
class Side:
    """One way to generate, and what it took."""

    generate: Callable[[LeftPadded], Tensor]
    seconds: list[float] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def run(self, batches: list[LeftPadded], *, is_timed: bool) -> None:
        """Generate for some batches."""
        before = counted()
        start = perf_counter()
        for batch in batches:
            self.generate(batch).cpu()
        seconds = perf_counter() - start
        if is_timed:
            self.seconds.append(seconds)
            for name, value in counted().items():
                self.counts[name] = self.counts.get(name, 0) + value - before[name]

    def a_token(self, name: str, num_batches: int) -> float:
        """How many of what is counted a new token of a batch has."""
        return self.counts[name] / (num_batches * NUM_ROUNDS * NUM_TOKENS)


def counted() -> dict[str, int]:
    """Launches, graphs and waits of this process so far."""
    found = {name: vendor.metric(name) for name in ("launch", "graph_compilation", "host_sync")}
    return {name: int(stats["TotalNumber"]) for name, stats in found.items() if stats is not None}


def prompts(batch_size: int, seed: int) -> LeftPadded:
    """A batch of random prompts of mixed length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, BUCKETS[-1] + 1, (batch_size,), generator=generator).tolist()
    texts = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    # Ours pads to a bucket, and transformers is given what a tokenizer would: the longest.
    longest = max(lengths)
    return pad_left(texts, (longest,), PAD)


def make_sides(model: Any) -> dict[str, Side]:
    """Both ways, for the same model."""
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


def compare(model: Any, batch_size: int) -> tuple[list[str], bool]:
    """A line of the table for a batch size, and whether ours keeps its limit."""
    sides = make_sides(model)
    warm_up = [prompts(batch_size, seed) for seed in range(4)]
    for side in sides.values():
        side.run(warm_up, is_timed=False)
    batches = [prompts(batch_size, seed) for seed in range(10, 13)]
    for index in range(NUM_ROUNDS):
        for name in (OURS, THEIRS) if index % 2 else (THEIRS, OURS):
            sides[name].run(batches, is_timed=True)
    ours, theirs = sides[OURS], sides[THEIRS]
    num_tokens = len(batches) * batch_size * NUM_TOKENS
    ratio = median(b / a for a, b in zip(ours.seconds, theirs.seconds, strict=True))
    launches = [side.a_token("launch", len(batches)) for side in (ours, theirs)]
    waits = [side.a_token("host_sync", len(batches)) for side in (ours, theirs)]
    graphs = [side.counts["graph_compilation"] for side in (ours, theirs)]
    line = [
        str(batch_size),
        *(f"{num_tokens / median(side.seconds):.0f}" for side in (ours, theirs)),
        f"{ratio:.2f}",
        *(f"{value:.2f}" for value in launches),
        *(f"{value:.2f}" for value in waits),
        *map(str, graphs),
    ]
    return line, launches[0] <= LAUNCHES_A_TOKEN and graphs[0] == 0


def main() -> int:
    """Measure, print a table, and return 1 if ours launches or compiles too much."""
    if not vendor.is_available():
        print(
            "This needs an hpu: run it through `lightning-gaudi simulate --cards 1 -- python ...`."
        )
        return 2
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": VOCABULARY}
    config = BloomConfig(**sizes, pad_token_id=PAD, eos_token_id=None, bos_token_id=1)
    model = BloomForCausalLM(config).eval().to("hpu")
    model.generation_config.eos_token_id = None
    names = ["tokens/s", "launches a token", "waits a token", "graphs"]
    pairs = [f"{name}, {side}" for name in names for side in ("ours", "theirs")]
    lines, is_kept = [["batch", *pairs[:2], "ratio", *pairs[2:]]], True
    for batch_size in BATCH_SIZES:
        line, is_within = compare(model, batch_size)
        lines.append(line)
        is_kept &= is_within
    print(f"{'lazy' if vendor.is_lazy() else 'eager'} mode, {NUM_TOKENS} tokens a prompt")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
