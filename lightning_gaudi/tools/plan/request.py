"""Defines what is asked of a rehearsal, and its results: plain data that go between processes."""

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
"""The most forks of a rehearsal at a time: each is busy, and needs memory for the data."""
VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""The variable that names the file with the request for a process."""


def first_rank(world_size: int, num_cards: int) -> dict[str, str]:
    """Returns the environment of the first of `world_size` ranks, `num_cards` on each node.

    For a single rank it is empty.
    """
    if world_size < 2:
        return {}
    # There are no other ranks to connect. Port 0 never clashes with another rehearsal's.
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": str(world_size)}
    found |= dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"), "0")
    return found | {"LOCAL_WORLD_SIZE": str(num_cards)}


@dataclass(frozen=True)
class Request:
    """Describes one way to run a program. Whatever is None stays as the program has it."""

    strategy: str | None = None
    """The strategy of the Trainer."""
    devices: int | None = None
    """The number of cards of all nodes; this process stands for the first."""
    precision: str | None = None
    checkpointing: bool | None = None
    """Whether models that can do so compute activations again in backward."""
    batch_size: int | None = None
    """The batch of each card and step; None for that of the program's loader."""
    budgets: tuple[int, ...] = ()
    """Amounts of memory in bytes, for each of which the largest batch is looked for."""
    unfused: tuple[str, ...] = ()
    """For each budget the key of its card if attention is not fused there, else ""."""
    result: str = ""
    """The file that results are written to, one JSON object a line."""

    def save(self, path: Path) -> None:
        """Writes the request where `load` finds it."""
        path.write_text(json.dumps(asdict(self)))

    def environment(self, path: Path) -> dict[str, str]:
        """Writes the request to a file; returns the environment in which a program rehearses it."""
        self.save(path)
        found = {VARIABLE: str(path), TOOL: "lightning_gaudi.tools.plan.patches"}
        return found | (first_rank(self.devices, self.devices) if self.devices else {})

    @classmethod
    def load(cls, path: Path) -> Request:
        """Reads a request that `save` has written.

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
"""The name in `Counted.flops_of` of what convolutions compute."""


@dataclass(frozen=True)
class Counted:
    """Holds what a step computes and sends on one card."""

    flops: int = 0
    """The operations of products of matrices, with those of checkpointing; 0 if not known."""
    moved_bytes: int = 0
    """The bytes that all operators read and write, if none is fused."""
    collective_bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes that this rank sends over its links, by kind of collective."""
    num_micro_batches: int = 1
    """The number of batches in a step of the optimizer."""
    weight_bytes: int = 0
    """The bytes of weights that products of matrices read, as often as these must be fetched."""
    num_replicas: int = 1
    """The number of groups of cards that each take a batch of their own."""
    flops_of: Mapping[str, int] = field(default_factory=dict)
    """The operations by the dtype of the factors, and those of convolutions by their name, too."""
    num_operators: int = 0
    """The number of calls of operators that compute."""
    fused_bytes: int = 0
    """The bytes that operators read and write, if elementwise operators are fused."""
    product_bytes: int = 0
    """The bytes of these that products of matrices read and write."""
    num_attentions: int = 0
    """Layers of attention in all forwards, those that checkpointing runs again, too."""
    num_cross_attentions: int = 0
    """Of these, those whose queries are more or fewer than the keys: of an encoder-decoder, or of
    a token behind others."""
    num_passes: int = 0
    """How often a product reads the weight that is read most."""
    is_trained: bool = True
    """Whether it takes steps of an optimizer."""


@dataclass(frozen=True)
class Rehearsed:
    """Holds what one batch size takes of one card."""

    batch_size: int
    peak_bytes: int
    """The most bytes in use during a step, and an evaluation behind it."""
    setup_bytes: int
    """The most bytes in use before that: during setup, and in the steps that compile."""
    num_cards: int = 1
    """The number of cards of all nodes that run it together."""
    has_loader: bool = True
    """Whether a loader of torch gives its batches, so that other sizes can be tried."""
    has_strategy: bool = True
    """Whether Lightning runs it, whose strategy and precision a plan can change."""
    growing_bytes: int = 0
    """The most bytes in use in forward and backward of any step, and in an evaluation. They grow
    with the batch; those of setup and of the optimizer's step do not."""
    held_bytes: int = 0
    """The bytes of weights, gradients, optimizer state and buckets at once, whatever the batch."""
    categories: Mapping[str, int] = field(default_factory=dict)
    """The bytes at the peak by what held them; their sum is the peak."""
    host: Mapping[str, int] = field(default_factory=dict)
    """The bytes that this process takes of the host's memory at one time or another."""
    checkpoint: Mapping[str, int] = field(default_factory=dict)
    """The bytes of a checkpoint of all ranks, with the optimizer and without; empty if none is
    asked for, or nothing is trained."""
    can_checkpoint: bool = False
    """Whether a module can be told to compute its activations again in backward."""
    has_fused_attention: bool = False
    """Whether its attention was the vendor's fused kernel, which a first Gaudi does not have."""
    guessed: Mapping[str, str] = field(default_factory=dict)
    """The lines, as "train.py:42", where the size of a result depends on values of a real run, and
    their operators. They were planned as if these values were zeros."""
    is_lazy: bool = False
    """Whether it ran in lazy mode, where all between two `mark_step` is one graph."""

    @property
    def need(self) -> Need:
        """The memory that a card must have."""
        return Need(max(self.peak_bytes, self.setup_bytes), self.growing_bytes)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Returns what a rehearsal has written; its last line may be cut short."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            found.append(parse_json(line))
    return [each for each in found if isinstance(each, dict)]
