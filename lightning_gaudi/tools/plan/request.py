"""What is asked of a rehearsal, and what comes of it: plain data, as it goes between processes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_gaudi._patches.on_import import TOOL
from lightning_gaudi.tools.plan.search import Need
from lightning_gaudi.untrusted import parse_json, printable

MAX_FORKS = min(4, os.cpu_count() or 1)
"""Of a rehearsal at a time: each is busy, and needs memory for the program's data."""
VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""The file with the request that a process is to rehearse."""


def first_rank(world_size: int, num_cards: int) -> dict[str, str]:
    """Returns the environment of the first of so many ranks, as many of which are of its node.

    Of a single one there is nothing to say.
    """
    if world_size < 2:
        return {}
    # Nobody listens and nobody comes. Port 0 is free, whoever rehearses at the same time.
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": str(world_size)}
    found |= dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"), "0")
    return found | {"LOCAL_WORLD_SIZE": str(num_cards)}


@dataclass(frozen=True)
class Request:
    """One way to run a program. What is None stays as the program has it."""

    strategy: str | None = None
    """The Trainer's."""
    devices: int | None = None
    """Cards of all nodes, of which this process plays the first."""
    precision: str | None = None
    checkpointing: bool | None = None
    """Whether models that can are to compute activations again in backward."""
    batch_size: int | None = None
    """Of each card and step; None for that of the program's loader."""
    budgets: tuple[int, ...] = ()
    """Memory in bytes; for each the largest batch is looked for that keeps within it."""
    unfused: tuple[str, ...] = ()
    """For each budget the key of its card where attention is not fused there, else empty."""
    result: str = ""
    """The file that results are written to, one JSON object a line."""

    def save(self, path: Path) -> None:
        """Writes it where `load` finds it."""
        path.write_text(json.dumps(asdict(self)))

    def environment(self, path: Path) -> dict[str, str]:
        """Writes it to a file; returns the environment in which a program rehearses it."""
        self.save(path)
        found = {VARIABLE: str(path), TOOL: "lightning_gaudi.tools.plan.patches"}
        return found | (first_rank(self.devices, self.devices) if self.devices else {})

    @classmethod
    def load(cls, path: Path) -> Request:
        """Reads what `save` has written.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            found = parse_json(path.read_bytes())
            lists = {name: tuple(found[name]) for name in ("budgets", "unfused")}
            return cls(**{**found, **lists})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is no request to rehearse ({printable(error, max_chars=200)}). Start the "
                "rehearsal by `lightning-gaudi plan`, which writes it."
            ) from error


CONVOLUTION = "convolution"
"""In `Counted.flops_of`, the name of what convolutions compute."""


@dataclass(frozen=True)
class Counted:
    """What a step computes and sends on one card."""

    flops: int = 0
    """Of the products of matrices, with what checkpointing computes again; 0 if not known."""
    moved_bytes: int = 0
    """What all operators read and write, if none is fused."""
    collective_bytes: Mapping[str, int] = field(default_factory=dict)
    """What this rank sends over its links for each kind of collective."""
    num_micro_batches: int = 1
    """Batches of a step of the optimizer."""
    weight_bytes: int = 0
    """Of the weights that products of matrices read, each as often as it must be brought."""
    num_replicas: int = 1
    """Groups of cards that each take a batch of their own."""
    flops_of: Mapping[str, int] = field(default_factory=dict)
    """The operations by the dtype of what is multiplied; convolutions once more by that name."""
    num_operators: int = 0
    """Calls of operators that compute."""
    fused_bytes: int = 0
    """What operators read and write, if those on each element are fused with their kind."""
    product_bytes: int = 0
    """Of these, what products of matrices read and write."""
    num_attentions: int = 0
    """Layers of attention in all forwards, those that checkpointing runs again, too."""
    num_passes: int = 0
    """How often the weight that is read most is read by a product."""
    is_trained: bool = True
    """Whether it takes steps of an optimizer."""


@dataclass(frozen=True)
class Rehearsed:
    """What one batch size takes of one card."""

    batch_size: int
    peak_bytes: int
    """Most in use during a step, and an evaluation behind it."""
    setup_bytes: int
    """Most in use before: as it is set up, and in the steps that compile."""
    num_cards: int = 1
    """Cards of all nodes that run it together."""
    has_loader: bool = True
    """Whether a loader of torch gives its batches, so that other sizes can be tried."""
    has_strategy: bool = True
    """Whether Lightning runs it, whose strategy and precision a plan can change."""
    growing_bytes: int = 0
    """Most in use in forward and backward of any step, and in an evaluation: what grows with the
    batch, beside which setup and the optimizer's part do not."""
    held_bytes: int = 0
    """Of weights, gradients, optimizer state and buckets at once, whatever the batch."""
    categories: Mapping[str, int] = field(default_factory=dict)
    """What held the peak, in bytes; they sum up to it."""
    host: Mapping[str, int] = field(default_factory=dict)
    """What this process takes of the host's memory at one time or another, in bytes."""
    checkpoint: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a checkpoint of all ranks, with the optimizer and without; empty if none is asked
    for, or nothing is trained."""
    can_checkpoint: bool = False
    """Whether a module can be told to compute its activations again in backward."""
    has_fused_attention: bool = False
    """Whether its attention was the vendor's fused kernel, which a first Gaudi does not have."""
    guessed: Mapping[str, str] = field(default_factory=dict)
    """Where the size of a result depends on values that only a run has, as "train.py:42", and the
    operator: it was planned as if these values were zeros."""
    is_lazy: bool = False
    """Whether it ran in lazy mode, where what is between two `mark_step` is one graph."""

    @property
    def need(self) -> Need:
        """What a card must have."""
        return Need(max(self.peak_bytes, self.setup_bytes), self.growing_bytes)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Returns what a rehearsal has written; it may have been ended in the middle of a line."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            found.append(parse_json(line))
    return [each for each in found if isinstance(each, dict)]
