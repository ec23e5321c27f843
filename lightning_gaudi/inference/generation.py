"""Generates text by decoder-only models of transformers, with static shapes and no wait a token.

B prompts of a batch, T tokens that each is padded to, N new tokens, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .buckets import DEFAULT_BUCKETS, bucket_for, check_buckets, extend_left
from .checks import (
    check_call,
    check_experts,
    check_model,
    check_prompts as _check_prompts,
    one_seed_a_row,
    refuse_unknown,
    token_ids,
    warn_of_settings,
)
from .decoding import Decoder, Shape
from .engine import Engine, resolve
from .latency import Stopwatch
from .sampling import Sampling, draw_noise
from .tensor_parallel import check_capture

_KEPT = "_gaudi_generators"


class TextGenerator:
    """Generates text, and keeps what that needs for each batch size and bucket.

    It keeps a cache of keys and values, whose size is the bucket and the new tokens together. In
    lazy mode it also keeps an HPU graph of the step for a token, and in eager mode two compiled
    graphs. A call with more new tokens than any before replaces them.

    Args:
        model: A decoder-only model of transformers with a static cache, in evaluation mode.
        engine: How a token's step is run, see `Engine`; in eager mode the prompt's step, too.
        buckets: The widths that prompts are padded to, ascending.
        pad_token_id: The token after a row's end; by default the model's.
        eos_token_id: The token that ends a row, or several; by default the model's.
        capture_prefill: Whether lazy mode captures the prompt's step as well. It takes one more
            graph for each batch size and bucket, and the memory in which that computes.

    Raises:
        ValueError: The model has no static cache, or no padding token; or an argument is wrong.
    """

    def __init__(
        self,
        model: Any,
        engine: Engine = "auto",
        buckets: Sequence[int] = DEFAULT_BUCKETS,
        *,
        pad_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        capture_prefill: bool = False,
    ) -> None:
        check_model(model)
        self.model = model
        """The model."""
        self.buckets = check_buckets(buckets)
        """The widths."""
        self._device = next(model.parameters()).device
        self.engine = resolve(engine, self._device, self.model)
        """"graph", "compile" or "none"."""
        check_experts(model, self.engine)
        if self.engine == "graph":
            check_capture(model)
        self.pad_token_id, self.eos_token_ids = token_ids(model, pad_token_id, eos_token_id)
        self._capture_prefill = capture_prefill
        warn_of_settings(model)
        self._decoders: dict[Any, Decoder] = {}
        # Freed with the generator, and not when Python collects cycles: the card may be full then.
        weakref.finalize(self, _release, self._decoders)
        self._memory: list[tuple[int, torch.dtype]] = []

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        seeds: int | Sequence[int] | None = None,
        check_end_every: int | None = None,
        check_prompts: bool = True,
        on_logits: Callable[[Tensor], None] | None = None,
        stopwatch: Stopwatch | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Generates text for a batch of prompts.

        Args:
            input_ids: [B, T] integers, padded on the left, on any device.
            attention_mask: [B, T] integers or booleans, 1 where a token belongs to the prompt.
            max_new_tokens: The number of new tokens (N).
            sampling: The way tokens are drawn; None takes the likeliest each time.
            seeds: One for each row, or one for all. Together with the prompt they decide the text.
            check_end_every: After every so many tokens the host waits for the device to learn
                whether all rows have ended; None never waits.
            check_prompts: Whether the values of tokens and mask are checked. If they are on the
                HPU, the host waits once.
            on_logits: Is called with the logits [B, V] float32 of each token; they are valid until
                the next one.
            stopwatch: Is told of the first token, and of the number of tokens, within its `call`.
            unknown: Arguments of transformers' `generate` that are not here; refused by name.

        Returns:
            [B, N] int64 on the model's device; after a row's end there is only padding.

        Raises:
            ValueError: An argument is wrong, or a prompt does not fit.
        """
        refuse_unknown(unknown, type(self).__call__)
        check_call(self.model, input_ids, attention_mask, max_new_tokens, check_end_every)
        rows = one_seed_a_row(seeds, sampling, len(input_ids))
        if check_prompts:
            _check_prompts(self.model, input_ids, attention_mask, max_new_tokens)
        bucket = bucket_for(input_ids.shape[1], self.buckets)
        decoder = self._decoder(len(input_ids), bucket, max_new_tokens)
        with torch.inference_mode(False), torch.no_grad():
            ids = extend_left(input_ids, bucket, self.pad_token_id)
            mask = extend_left(attention_mask.long(), bucket, 0)
            noise = draw_noise(rows, max_new_tokens) if rows else None
            decoder.begin(ids, F.pad(mask, (0, decoder.shape.room)), sampling, noise)
        num_steps = self._run(decoder, max_new_tokens, check_end_every, on_logits, stopwatch)
        if stopwatch is not None:
            stopwatch.tokens(decoder.num_tokens.clone(), num_steps)
        return decoder.tokens(max_new_tokens)

    @property
    def num_captures(self) -> int:
        """The number of HPU graphs: one for each batch size, bucket and way to choose tokens."""
        return sum(decoder.num_captures for decoder in self._decoders.values())

    def _decoder(self, batch_size: int, bucket: int, room: int) -> Decoder:
        self._forget_other_weights()
        kind = self._device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        key = (batch_size, bucket, autocast)
        found = self._decoders.get(key)
        if found is not None and found.shape.room >= room:
            return found
        if found is not None:
            self._decoders.pop(key).release()
        self._decoders[key] = Decoder(
            self.model,
            Shape(batch_size, bucket, room),
            pad_token_id=self.pad_token_id,
            eos_token_ids=self.eos_token_ids,
            engine=self.engine,
            capture_prefill=self._capture_prefill,
        )
        return self._decoders[key]

    def _forget_other_weights(self) -> None:
        """Drops graphs and caches if the weights were replaced, since a graph reads the old ones.

        A move of the model to another device and back replaces them, as a Trainer does at its end.
        """
        now: list[Tensor] = [*self.model.parameters()]
        if now[0].device != self._device:
            raise ValueError(
                f"The model was on {self._device} when its TextGenerator was made, and is on "
                f"{now[0].device}. Make the generator when the model is where it generates."
            )
        memory = [(_local(weight).data_ptr(), weight.dtype) for weight in now]
        if memory != self._memory:
            _release(self._decoders)
            self._memory = memory

    def _run(
        self,
        decoder: Decoder,
        num_tokens: int,
        check_end_every: int | None,
        on_logits: Callable[[Tensor], None] | None,
        stopwatch: Stopwatch | None,
    ) -> int:
        """Runs the steps, and returns how many there were."""
        for count in range(num_tokens):
            is_due = count and check_end_every and count % check_end_every == 0
            if is_due and decoder.have_all_ended():
                return count
            logits = decoder.step() if count else decoder.prefill()
            if count == 0 and stopwatch is not None:
                stopwatch.first_token()
            if on_logits is not None:
                on_logits(logits)
        return num_tokens


def generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    max_new_tokens: int,
    *,
    engine: Engine = "auto",
    buckets: Sequence[int] = DEFAULT_BUCKETS,
    pad_token_id: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    **settings: Any,
) -> Tensor:
    """Generates text by a `TextGenerator` that stays with the model for the next call.

    Args:
        model: See `TextGenerator`.
        input_ids: See `TextGenerator.__call__`.
        attention_mask: See there.
        max_new_tokens: See there.
        engine: See `TextGenerator`.
        buckets: See there.
        pad_token_id: See there.
        eos_token_id: See there.
        settings: Further arguments of `TextGenerator.__call__`.

    Returns:
        [B, max_new_tokens] int64 on the model's device; after a row's end there is only padding.

    Raises:
        ValueError: See there.
    """
    ends = (
        eos_token_id if eos_token_id is None or isinstance(eos_token_id, int) else (*eos_token_id,)
    )
    device = next(model.parameters()).device
    key = (engine, tuple(buckets), pad_token_id, ends, device)
    kept = model.__dict__.setdefault(_KEPT, _Kept())
    if key not in kept:
        kept[key] = TextGenerator(
            model, engine, buckets, pad_token_id=pad_token_id, eos_token_id=eos_token_id
        )
    generator: TextGenerator = kept[key]
    return generator(input_ids, attention_mask, max_new_tokens, **settings)


def _release(decoders: dict[Any, Decoder]) -> None:
    for decoder in decoders.values():
        decoder.release()
    decoders.clear()


def _local(weight: Tensor) -> Tensor:
    """Returns this rank's part of a weight, if it is a DTensor."""
    part: Tensor = getattr(weight, "_local_tensor", weight)
    return part


class _Kept(dict[Any, TextGenerator]):
    """The generators that stay with a model; a copy of the model, or a pickled one, has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()
