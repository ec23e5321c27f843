"""Decides which weights of a model are cut up for several cards, and how.

A plan gives each layer a style: "columns" computes some of a layer's outputs on each card, and
"rows" takes some of its inputs and adds the cards' results up. The two follow each other, so that
no card needs another one between them. transformers has a plan for many models; for Bloom and GPT-2
the plan is ours. Embedding and output head are cut by the words of the vocabulary, whatever the
plan says.
"""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor, nn

Style = Literal["columns", "rows", "fused columns", "vocabulary", "head"]

_OURS: dict[str, dict[str, Style]] = {
    "bloom": {
        "h.*.self_attention.query_key_value": "columns",
        "h.*.self_attention.dense": "rows",
        "h.*.mlp.dense_h_to_4h": "columns",
        "h.*.mlp.dense_4h_to_h": "rows",
    },
    "gpt2": {
        "h.*.attn.c_attn": "fused columns",
        "h.*.attn.c_proj": "rows",
        "h.*.mlp.c_fc": "columns",
        "h.*.mlp.c_proj": "rows",
    },
}
"""Our plans by model type, where transformers has none. Bloom's queries, keys and values lie head
by head, so that they can be cut like any layer."""

_STYLES: dict[str, Style | None] = {
    "colwise": "columns",
    "rowwise": "rows",
    # Layers that all cards compute alike; the second name is about gradients.
    "replicate": None,
    "replicated_with_grad_allreduce": None,
}
"""Our styles by their names in the plans of transformers, 4.49 to 5.23."""

_FAMILIES = (
    "gemma",
    "gemma2",
    "glm",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "olmo",
    "phi",
    "qwen2",
    "qwen3",
    "smollm3",
    "starcoder2",
)
"""The model types that a message names, as far as the installed transformers has their plans."""


@dataclass(frozen=True)
class Layout:
    """Says how a weight is cut along one of its dims for several cards."""

    stored: tuple[int, ...]
    """The shape of the weight in the model's file."""
    shape: tuple[int, ...]
    """A view of the same numbers, with a dim that can be cut."""
    dim: int
    """The dim of `shape` that is cut."""

    def span(self, num_cards: int, rank: int) -> tuple[int, int]:
        """Returns where a card's part begins, and its length; the last cards may have less."""
        whole = self.shape[self.dim]
        most = math.ceil(whole / num_cards)
        start = min(rank * most, whole)
        return start, min(most, whole - start)

    def part(self, whole: Tensor, num_cards: int, rank: int) -> Tensor:
        """Returns a card's part, which is a view of `whole`; that has the shape `stored`."""
        return whole.view(self.shape).narrow(self.dim, *self.span(num_cards, rank))

    def part_shape(self, num_cards: int, rank: int) -> tuple[int, ...]:
        """Returns the shape of a card's part."""
        shape = list(self.shape)
        shape[self.dim] = self.span(num_cards, rank)[1]
        return tuple(shape)


def plan(model: Any, num_cards: int) -> dict[str, tuple[Style, dict[str, Layout]]]:
    """Returns the style of each layer that is cut up, and how its weights are cut.

    Args:
        model: A model of transformers, on any device; "meta" will do.
        num_cards: The number of cards.

    Returns:
        Style and layouts by the name of the layer; the layouts by the name of the weight in it.

    Raises:
        ValueError: There is no plan for the model, it has a style that is not known here, heads or
            a width are no multiple of the cards, or there are fewer words than cards.
    """
    styles = _styles(model)
    _check_heads(model, num_cards)
    layers = dict(model.named_modules())
    found = {name: (style, _layouts(layers[name], style, name)) for name, style in styles.items()}
    for name, (style, layouts) in found.items():
        is_by_words = style in ("vocabulary", "head")
        (_check_words if is_by_words else _check_width)(name, layouts["weight"], num_cards)
    return found


def _styles(model: Any) -> dict[str, Style]:
    """Returns the styles of layers by name, with embedding and output head."""
    base = getattr(model, "base_model", model)
    names = {id(module): name for name, module in model.named_modules()}
    prefix = f"{names[id(base)]}." if base is not model else ""
    found: dict[str, Style] = {}
    for pattern, style in _plan_of(model).items():
        pattern = f"{prefix}{pattern}"
        matching = [name for name in names.values() if _matches(name, pattern)]
        known = _known(style, pattern, model) if matching else None
        found.update(dict.fromkeys(matching, known) if known is not None else {})
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    found[names[id(embedding)]] = "vocabulary"
    if head is not None:
        found[names[id(head)]] = "head"
    return found


def _matches(name: str, pattern: str) -> bool:
    return name.count(".") == pattern.count(".") and fnmatch.fnmatchcase(name, pattern)


def _plan_of(model: Any) -> dict[str, Any]:
    config = model.config
    theirs = getattr(config, "base_model_tp_plan", None)
    if found := theirs or _OURS.get(config.model_type):
        return dict(found)
    import transformers

    raise ValueError(
        f"There is no plan for {type(model).__name__} (model type {config.model_type!r}) on "
        f"several cards: transformers {transformers.__version__} has none, nor has lightning-gaudi."
        f" Models that have one are {', '.join(_families())} and others whose configuration has a "
        "base_model_tp_plan. Use one of these, or one card."
    )


def _families() -> list[str]:
    from transformers import CONFIG_MAPPING

    theirs = [
        name
        for name in _FAMILIES
        if name in CONFIG_MAPPING and getattr(CONFIG_MAPPING[name], "base_model_tp_plan", None)
    ]
    return sorted([*_OURS, *theirs])


def _known(style: str, pattern: str, model: Any) -> Style | None:
    ours = _OURS.get(model.config.model_type, {})
    if style in ours.values():
        return cast(Style, style)
    if style not in _STYLES:
        raise ValueError(
            f"The plan of {type(model).__name__} gives {pattern} the style {style!r}, which is not "
            f"known here; those that are: {', '.join(_STYLES)}. Run the model on one card."
        )
    return _STYLES[style]


def _check_heads(model: Any, num_cards: int) -> None:
    config = model.config
    names = ("num_attention_heads", "num_key_value_heads")
    heads = {name: int(getattr(config, name)) for name in names if getattr(config, name, None)}
    if any(num_heads % num_cards for num_heads in heads.values()):
        most = math.gcd(*heads.values())
        fitting = [str(n) for n in range(1, most + 1) if most % n == 0]
        told = " and ".join(f"{name}={num_heads}" for name, num_heads in heads.items())
        raise ValueError(
            f"{type(model).__name__} has {told}, which {num_cards} cards cannot share evenly. "
            f"Numbers of cards that can (tensor_parallel_size): {', '.join(fitting)}."
        )


def _check_width(name: str, layout: Layout, num_cards: int) -> None:
    width = layout.shape[layout.dim]
    if width % num_cards:
        raise ValueError(
            f"{name} has a width of {width}, which {num_cards} cards cannot share evenly. Pass a "
            f"tensor_parallel_size that divides {width}."
        )


def _check_words(name: str, layout: Layout, num_cards: int) -> None:
    # A card may have fewer words than others, but must have some.
    if layout.span(num_cards, num_cards - 1)[1] == 0:
        raise ValueError(
            f"{name} has {layout.shape[0]} words, which are too few for {num_cards} cards. Take "
            "fewer cards."
        )


def _layouts(layer: nn.Module, style: Style, name: str) -> dict[str, Layout]:
    """Returns how the weights of a layer are cut, without those that stay whole."""
    if style in ("vocabulary", "head"):
        _check_kind(layer, nn.Embedding if style == "vocabulary" else nn.Linear, name)
        is_transposed = False
    else:
        is_transposed = type(layer).__name__ == "Conv1D"
        if not is_transposed:
            _check_kind(layer, nn.Linear, name)
    weights = layer._parameters
    shape = tuple(weights["weight"].shape)  # type: ignore[union-attr]
    if style == "rows":
        return {"weight": Layout(shape, shape, 0 if is_transposed else 1)}
    parts = 3 if style == "fused columns" else 1
    outputs = 1 if is_transposed else 0
    found = {"weight": _fused(shape, outputs, parts)}
    if (bias := weights.get("bias")) is not None:
        found["bias"] = _fused(tuple(bias.shape), 0, parts)
    return found


def _fused(shape: tuple[int, ...], dim: int, parts: int) -> Layout:
    """Returns the layout of several layers in a row along `dim`, each of which is cut by itself."""
    if parts == 1:
        return Layout(shape, shape, dim)
    return Layout(shape, (*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :]), dim + 1)


def _check_kind(layer: nn.Module, kind: type[nn.Module], name: str) -> None:
    # A subclass may compute something else, such as an embedding that it scales.
    if type(layer) is not kind:
        raise ValueError(
            f"{name} is a {type(layer).__name__}, and only a torch.nn.{kind.__name__} can be cut "
            "there. Run the model on one card."
        )
