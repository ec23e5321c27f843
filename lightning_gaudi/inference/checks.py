"""Refuses what cannot be generated, with a message that says what to do."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi._core.wording import nearest

from .buckets import empty_prompt
from .engine import is_gathered
from .sampling import Sampling

_BEAMS = ("num_beams", "num_beam_groups", "num_return_sequences")
_INSTEAD = {
    "do_sample": "Pass sampling=Sampling(...) to draw tokens, and nothing for the likeliest.",
    "temperature": "Pass sampling=Sampling(temperature=...).",
    "top_k": "Pass sampling=Sampling(top_k=...).",
    "top_p": "Pass sampling=Sampling(top_p=...).",
    "max_length": "Pass max_new_tokens, which counts without the prompt.",
    "seed": "Pass seeds, one for each prompt or one for all.",
    "cache_implementation": "The cache is transformers' StaticCache.",
    "use_cache": "The cache is transformers' StaticCache.",
}
_CHANGES_TEXT = {
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None,),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "num_beams": (None, 1),
}
"""Settings of a model's generation_config that are not done here, with their harmless values."""


_EXPERTS_BY_THE_HOST = {"graph": ("eager", "grouped_mm"), "compile": ("eager",)}
"""By engine, transformers' ways to run experts in which the host reads the routing."""


def check_experts(model: Any, engine: str) -> None:
    """Refuses experts whose routing is read on the host, if a step is a graph.

    Raises:
        ValueError: The model has such experts.
    """
    has_experts = getattr(model, "_can_set_experts_implementation", bool)()  # transformers 5
    found = getattr(model.config, "_experts_implementation", None)
    if has_experts and found in _EXPERTS_BY_THE_HOST.get(engine, ()):
        raise ValueError(
            f"{type(model).__name__} has experts_implementation={found!r}, whose sizes the host "
            f"reads for each token; a step with engine={engine!r} is a graph, which cannot wait. "
            "Call model.set_experts_implementation('batched_mm'), or pass engine='none'."
        )


def check_model(model: Any) -> None:
    """Refuses a model that cannot generate here.

    Raises:
        ValueError: The model has no static cache of its whole text, or is in training mode.
    """
    name = type(model).__name__
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise ValueError(
            f"{name} is no model of transformers, or a wrapper of one. Pass the model itself, such "
            "as a LlamaForCausalLM."
        )
    if config.is_encoder_decoder:
        raise ValueError(
            f"{name} is an encoder-decoder model; only decoder-only models generate here. Use "
            "model.generate of transformers."
        )
    is_static = getattr(model, "_supports_static_cache", False) or getattr(
        model, "_can_compile_fullgraph", False
    )
    if not is_static or getattr(model, "_is_stateful", False):
        raise ValueError(
            f"transformers has no static cache for {name}. Use model.generate, or a model that has "
            "one, such as Bloom, Llama or Qwen2."
        )
    if kinds := _other_layers(config.get_text_config()):
        raise ValueError(
            f"{name} has layers of {', '.join(kinds)}, which see a part of the text only or keep "
            "a state; here all layers see the whole text. Use model.generate."
        )
    if model.training:
        raise ValueError(
            f"{name} is in training mode, and dropout would change the text. Call model.eval()."
        )


def _other_layers(config: Any) -> list[str]:
    """Returns the kinds of a model's layers that are not full attention."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sorted(set(kinds) - {"full_attention"})
    is_sliding = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    return ["sliding_attention"] if is_sliding else []


def token_ids(
    model: Any, pad_token_id: int | None, eos_token_id: int | Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    """Returns the padding token and the tokens that end a text, as given or else the model's.

    Raises:
        ValueError: There is no padding token.
    """
    sources = [getattr(model, "generation_config", None), model.config.get_text_config()]

    def own(name: str) -> Any:
        found = (getattr(source, name, None) for source in sources)
        return next((value for value in found if value is not None), None)

    pad = own("pad_token_id") if pad_token_id is None else pad_token_id
    ends = own("eos_token_id") if eos_token_id is None else eos_token_id
    if isinstance(ends, Tensor):
        ends = ends.tolist()
    if pad is None:
        raise ValueError(
            f"{type(model).__name__} has no padding token, which stands before short prompts and "
            "after a text's end. Pass pad_token_id=tokenizer.eos_token_id, or set "
            "model.generation_config.pad_token_id."
        )
    size = model.config.get_text_config().vocab_size
    if not 0 <= int(pad) < size:
        raise ValueError(f"pad_token_id={pad} is no token of a vocabulary of {size}.")
    return int(pad), () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


def refuse_unknown(unknown: Mapping[str, Any], of: Callable[..., Any]) -> None:
    """Refuses arguments that do not exist.

    Raises:
        ValueError: There is one; the message says what is meant, or what to pass instead.
    """
    for name, value in unknown.items():
        if name in _BEAMS:
            raise ValueError(
                f"{name}={value!r}: there is no beam search and one text a prompt. Leave it out, "
                "give a prompt several times with other seeds, or use model.generate."
            )
        parameters = inspect.signature(of).parameters.values()
        known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
        close = nearest(name, known)
        meant = f"Did you mean {close}?" if close else f"There are {', '.join(known)}."
        raise ValueError(f"There is no argument {name!r}. {_INSTEAD.get(name, meant)}")


def check_call(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    max_new_tokens: int,
    check_end_every: int | None,
) -> None:
    """Refuses arguments with a wrong shape, dtype or value.

    Raises:
        ValueError: An argument has one.
    """
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(
            f"input_ids must be of shape [prompts, tokens] and not empty, but its shape is "
            f"{tuple(input_ids.shape)}. Pass one prompt as [[...]]."
        )
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask is of shape {tuple(attention_mask.shape)}, and input_ids of "
            f"{tuple(input_ids.shape)}: they must be the same."
        )
    for name, tensor in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        if tensor.is_floating_point() or tensor.is_complex():
            raise ValueError(f"{name} must be integers, but is {tensor.dtype}.")
    for name, number in (("max_new_tokens", max_new_tokens), ("check_end_every", check_end_every)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, but is {number}.")
    if check_end_every and is_gathered(model):
        raise ValueError(
            f"check_end_every={check_end_every} ends a call when all of its rows have ended, and "
            "ZeRO-3 has each rank gather the weights as often as the others: those with longer "
            "texts would wait for ever. Leave it out."
        )
    if model.training:
        check_model(model)


def check_prompts(
    model: Any, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int
) -> None:
    """Checks the values of a batch; the host waits once if they are on the device.

    Raises:
        ValueError: A prompt is empty, padded on the right, or too long for the model, or has a
            token that is not in the vocabulary.
    """
    # Stacked, so that both come to the host in one copy.
    ids, mask = torch.stack((input_ids.long(), attention_mask.long().to(input_ids.device))).cpu()
    lengths = mask.sum(1)
    if not bool(lengths.all()):
        raise ValueError(empty_prompt(int(lengths.argmin())))
    is_wrong = (mask.diff(dim=1) < 0).any(1) | (mask != mask.clamp(0, 1)).any(1)
    if bool(is_wrong.any()):
        raise ValueError(
            f"attention_mask of prompt {int(is_wrong.int().argmax())} is not zeros and then ones: "
            "prompts are padded on the left. Set tokenizer.padding_side = 'left', or use pad_left."
        )
    config = model.config.get_text_config()
    outside = ((ids < 0) | (ids >= config.vocab_size)) & mask.bool()
    if bool(outside.any()):
        raise ValueError(
            f"input_ids has token {int(ids[outside][0])}, but the vocabulary of "
            f"{type(model).__name__} has {config.vocab_size}. Is the tokenizer that of the model?"
        )
    limit = getattr(config, "max_position_embeddings", None)
    longest = int(lengths.max())
    if limit is not None and longest + max_new_tokens - 1 > limit:
        raise ValueError(
            f"A prompt has {longest} tokens and max_new_tokens is {max_new_tokens}, but "
            f"{type(model).__name__} has {limit} positions. Truncate in the tokenizer, or ask for "
            "fewer new tokens."
        )


def one_seed_a_row(
    seeds: int | Sequence[int] | None, sampling: Sampling | None, num_rows: int
) -> list[int]:
    """Returns the seed of each row; an empty list if no tokens are drawn.

    Raises:
        ValueError: There are too few or too many seeds, or some although nothing is drawn.
    """
    if sampling is None:
        if seeds is not None:
            raise ValueError(
                "seeds are for drawing tokens, and sampling is None: the likeliest token needs "
                "none. Pass sampling=Sampling(...), or leave seeds out."
            )
        return []
    if seeds is None:
        raise ValueError(
            "sampling needs seeds, one for each prompt or one for all: they decide the text, "
            "whatever the batch size. Pass seeds=0, for instance."
        )
    rows = [seeds] if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if len(rows) not in (1, num_rows):
        raise ValueError(
            f"There are {len(rows)} seeds for {num_rows} prompts. Pass one for each, or one for "
            "all."
        )
    return rows if len(rows) == num_rows else rows * num_rows


def warn_of_settings(model: Any) -> None:
    """Warns of settings in a model's generation_config that are not done here."""
    config = getattr(model, "generation_config", None)
    left_out = [
        f"{name}={getattr(config, name)!r}"
        for name, harmless in _CHANGES_TEXT.items()
        if getattr(config, name, None) not in harmless
    ]
    if left_out and os.environ.get("RANK", "0") == "0":
        warnings.warn(
            f"The generation_config of {type(model).__name__} has {', '.join(left_out)}, which "
            "lightning_gaudi.inference does not do: its text is another than that of "
            "model.generate. Set what you do not want in model.generation_config to None.",
            UserWarning,
            stacklevel=3,
        )
