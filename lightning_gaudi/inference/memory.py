"""Computes what a card must hold before anything is loaded, from a model on meta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lightning_gaudi._core import vendor
from lightning_gaudi.hardware import GAUDIS

from .plans import plan

_GIB = 2**30


@dataclass(frozen=True)
class MemoryTable:
    """Lists the bytes that a card must hold, by what they are for; `str` makes a table of them."""

    title: str
    """The model, and how it is held."""
    num_cards: int
    """The number of cards that the model is on."""
    rows: Mapping[str, int]
    """Bytes on the card that holds most."""

    @property
    def total_bytes(self) -> int:
        """Bytes on the card that holds most."""
        return sum(self.rows.values())

    def __str__(self) -> str:
        """Returns the GiB on each card, a line for each row."""
        rows = {**self.rows, "together": self.total_bytes}
        width = max(map(len, rows))
        lines = [f"{name:<{width}} {num / _GIB:9.2f}" for name, num in rows.items()]
        return "\n".join([f"{self.title}, GiB a card:", *lines])


def memory_table(
    config: Any,
    num_cards: int,
    batch_size: int,
    num_tokens: int,
    dtype: torch.dtype = torch.bfloat16,
) -> MemoryTable:
    """Returns the memory that a decoder-only model needs on each card to generate.

    The memory in which a step computes is not counted: activations, logits, and the workspace of
    graphs.

    Args:
        config: A configuration of transformers.
        num_cards: The number of cards that `parallelize` cuts the model up for; 1 for none.
        batch_size: The number of prompts at a time.
        num_tokens: The slots of the cache: the bucket and the new tokens together.
        dtype: The dtype of weights and cache.

    Raises:
        ValueError: A number is not positive, or the model cannot be cut up for so many cards.
    """
    given = {"num_cards": num_cards, "batch_size": batch_size, "num_tokens": num_tokens}
    for name, number in given.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}={number!r} is no positive number.")
    import transformers

    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(config)
    model.tie_weights()
    in_parts, whole = _weight_bytes(model, num_cards, dtype)
    rows = {"weights, in parts": in_parts, "weights, whole on each card": whole}
    rows["keys and values"] = _cache_bytes(config, num_cards, batch_size, num_tokens, dtype)
    cards = "1 card" if num_cards == 1 else f"{num_cards} cards"
    title = (
        f"{type(model).__name__} on {cards}, batch of {batch_size}, {num_tokens} tokens, "
        f"{str(dtype).removeprefix('torch.')}"
    )
    return MemoryTable(title, num_cards, {name: num for name, num in rows.items() if num})


def parameter_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Returns the bytes of a module's weights in `dtype`, each counted once; it may be on meta."""
    return sum(each.numel() for each in module.parameters()) * dtype.itemsize


def card_memory_bytes(card: str | None = None) -> int:
    """Returns the memory of a card.

    Args:
        card: "gaudi1", "gaudi2" or "gaudi3"; None acquires and asks the card of this process.

    Raises:
        ValueError: There is no such card.
    """
    if card is None:
        return vendor.memory_stats()["Limit"]
    if card not in GAUDIS:
        raise ValueError(f"card={card!r} is none of {', '.join(GAUDIS)}.")
    return GAUDIS[card].memory_bytes


def check_fits(table: MemoryTable, capacity_bytes: int | None = None) -> None:
    """Refuses what a card cannot hold, before anything is loaded.

    Args:
        table: The memory that it has to hold.
        capacity_bytes: The memory that it has; by default that of this process's card.

    Raises:
        ValueError: The card is too small; the message has both figures and the table.
    """
    have = card_memory_bytes() if capacity_bytes is None else capacity_bytes
    if table.total_bytes > have:
        raise ValueError(
            f"A card would have to hold {table.total_bytes / _GIB:.2f} GiB and has "
            f"{have / _GIB:.2f}. Take more cards, a smaller batch or fewer tokens.\n{table}"
        )


def _weight_bytes(model: nn.Module, num_cards: int, dtype: torch.dtype) -> tuple[int, int]:
    """Returns the bytes of weights on the first card, which has most: in parts, and whole."""
    sizes = {each: each.numel() for each in model.parameters()}
    in_parts = 0
    layers = plan(model, num_cards) if num_cards > 1 else {}
    for name, (_, layouts) in layers.items():
        for weight, layout in layouts.items():
            parameter: Any = getattr(model.get_submodule(name), weight)
            num_elements = sizes.pop(parameter, 0)  # a tied one has been counted
            most = layout.span(num_cards, 0)[1]
            in_parts += num_elements // layout.shape[layout.dim] * most
    return in_parts * dtype.itemsize, sum(sizes.values()) * dtype.itemsize


def _cache_bytes(
    config: Any, num_cards: int, batch_size: int, num_tokens: int, dtype: torch.dtype
) -> int:
    config = config.get_text_config()
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    groups = getattr(config, "num_key_value_heads", None) or num_heads
    numbers = batch_size * num_tokens * groups // num_cards * head_dim
    return int(2 * config.num_hidden_layers * numbers * dtype.itemsize)
