"""Holds the tensors of one batch size and bucket, and the two steps that update them in place.

All that a token changes is in tensors on the device that stay where they are: the cache of keys and
values, the slots of it that are seen, positions, the tokens so far, and the rows that have ended.
So a token is one step without arguments, which an HPU graph can hold, and the host need not read
any value.

B rows, T tokens of the bucket, N new tokens that there is room for, S = T + N slots of the cache,
V vocabulary, E ends of a text.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .caches import has_tensors, make_tensors, new_cache
from .engine import Engine, Runner
from .sampling import Sampling, greedy, sample


@dataclass(frozen=True)
class Shape:
    """The sizes that the tensors of a decoder are made for."""

    batch_size: int
    bucket: int
    room: int
    """The number of new tokens that there are slots for."""

    @property
    def num_slots(self) -> int:
        """The number of tokens that the cache holds of each row."""
        return self.bucket + self.room


@dataclass(frozen=True)
class _Kind:
    """A way to choose tokens that has a graph of its own.

    Temperature and top_p are tensors, so that their values need no other graph.
    """

    is_sampled: bool
    has_top_p: bool
    top_k: int | None


class Decoder:
    """Generates text for one batch size and bucket.

    Args:
        model: A decoder-only model of transformers, see `checks.check_model`.
        shape: The sizes of the tensors.
        pad_token_id: The token after a row's end.
        eos_token_ids: The tokens that end a row.
        engine: The engine, as resolved for the model's device.
        capture_prefill: Whether the prompt's step is captured, too, if the engine is "graph".
    """

    def __init__(
        self,
        model: Any,
        shape: Shape,
        *,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        engine: Engine,
        capture_prefill: bool = False,
    ) -> None:
        self.shape = shape
        self._model = model
        self._pad = pad_token_id
        self._engine = engine
        self._prefill_engine: Engine = (
            "none" if engine == "graph" and not capture_prefill else engine
        )
        self._takes = set(inspect.signature(model.forward).parameters)
        # The argument is "cache" since transformers 5.24, and its older name goes with 5.40.
        is_renamed = "cache" in self._takes and "past_key_values" not in self._takes
        self._takes_cache_as = "cache" if is_renamed else "past_key_values"
        # Models with ALiBi compute it from the slots that are seen, and take no positions.
        self._has_positions = "position_ids" in self._takes and not model.config.to_dict().get(
            "alibi"
        )
        self._runners: dict[tuple[str, _Kind], Runner] = {}
        weight = next(model.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        kind = weight.device.type
        # The lowest float32 would be rounded to -inf by autocast. A row of padding, all of it
        # masked, would be NaN then, and so would be the text.
        is_autocast = torch.is_autocast_enabled(kind)
        computes_in = torch.get_autocast_dtype(kind) if is_autocast else weight.dtype
        self._least = max(torch.finfo(dtype).min for dtype in (computes_in, weight.dtype))
        with torch.inference_mode(False), torch.no_grad():
            self._allocate(eos_token_ids)

    def _allocate(self, eos_token_ids: Sequence[int]) -> None:
        rows, width, room = self.shape.batch_size, self.shape.bucket, self.shape.room
        self._ids = self._made(rows, width)
        self._seen = self._made(rows, self.shape.num_slots)
        self._one = self._made(rows, 1, value=1)
        self._slot = self._made(1)
        self._position = self._made(rows, 1)
        self._token = self._made(rows, 1)
        self._tokens = self._made(rows, room)
        self._count = self._made(1)
        self._num_tokens = self._made()
        self._ends = torch.tensor(list(eos_token_ids), dtype=torch.long).to(self._device)
        self._ended = self._made(rows, 1, dtype=torch.bool)
        self._all_ended = self._made(dtype=torch.bool)
        self._noise = self._made(rows, room, dtype=torch.float32)
        self._temperature = self._made(1, dtype=torch.float32, value=1)
        self._top_p = self._made(1, dtype=torch.float32, value=1)
        self._cache = self._new_cache()
        if has_tensors(self._cache) or self._device.type != "hpu":
            return

        def run() -> None:
            mask = torch.empty_like(self._mask(1))
            self._forward(self._token, self._position, mask, self._slot)

        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            run()  # with values, since the other ranks may have parts of the model, and wait
            return
        try:
            make_tensors(self._cache, run, self._device)
        except Exception:
            # Experts may look at values, and torch knows the shapes of their grouped products in
            # bfloat16 only (2.13, `_meta_registrations.py`). If the model itself is at fault, this
            # run raises its error.
            self._cache = self._new_cache()
            run()

    def _new_cache(self) -> Any:
        rows, num_slots = self.shape.batch_size, self.shape.num_slots
        return new_cache(self._model, rows, num_slots, self._device, self._dtype)

    def _made(self, *shape: int, dtype: torch.dtype = torch.long, value: int = 0) -> Tensor:
        # Made on the host and copied, since making it on the device is a graph for each bucket.
        return torch.full(shape, value, dtype=dtype).to(self._device)

    def begin(
        self, input_ids: Tensor, seen: Tensor, sampling: Sampling | None, noise: Tensor | None
    ) -> None:
        """Takes the prompts of a batch.

        Args:
            input_ids: [B, T] integers, on any device.
            seen: [B, T + N] integers, 1 where a slot of the cache will hold a token of a prompt.
            sampling: The way tokens are drawn; None takes the likeliest.
            noise: [B, n] float32 for the first n new tokens; None if they are not drawn.
        """
        self._kind = _Kind(False, False, None)
        with torch.inference_mode(False), torch.no_grad():
            self._ids.copy_(input_ids, non_blocking=True)
            self._seen.copy_(seen, non_blocking=True)
            if sampling is None or noise is None:
                return
            self._kind = _Kind(True, sampling.top_p is not None, sampling.top_k)
            wider = torch.nn.functional.pad(noise, (0, self.shape.room - noise.shape[1]))
            self._noise.copy_(wider, non_blocking=True)
            # Copied into tensors: a number of the host would be a constant of the graph, and
            # another number would need another graph.
            self._temperature.copy_(torch.tensor([sampling.temperature]), non_blocking=True)
            self._top_p.copy_(torch.tensor([sampling.top_p or 1.0]), non_blocking=True)

    def prefill(self) -> Tensor:
        """Reads the prompts and chooses the first token; returns its logits [B, V]."""
        return self._run("prefill")

    def step(self) -> Tensor:
        """Chooses one more token of each row; returns the logits [B, V] it was chosen from."""
        return self._run("step")

    def have_all_ended(self) -> bool:
        """Returns whether all rows have ended; the host waits for the device."""
        return bool(self._all_ended.item())

    def tokens(self, num_tokens: int) -> Tensor:
        """Returns a copy [B, num_tokens] of the first new tokens."""
        with torch.inference_mode(False), torch.no_grad():
            return self._tokens[:, :num_tokens].clone()

    @property
    def num_tokens(self) -> Tensor:
        """The number of tokens of all rows up to and including their ends, int64 of shape ()."""
        return self._num_tokens

    @property
    def num_captures(self) -> int:
        """The number of HPU graphs that were captured."""
        return sum(runner.num_captures for runner in self._runners.values())

    def release(self) -> None:
        """Frees graphs and cache at once, and not when Python collects its garbage."""
        self._runners.clear()
        del self._cache

    def _run(self, name: str) -> Tensor:
        key = (name, self._kind)
        if key not in self._runners:
            kind, do = self._kind, self._prefill if name == "prefill" else self._decode
            engine = self._prefill_engine if name == "prefill" else self._engine
            self._runners[key] = Runner(lambda: do(kind), engine, device=self._device)
        logits: Tensor = self._runners[key]()
        return logits

    def _prefill(self, kind: _Kind) -> Tensor:
        self._cache.reset()
        self._tokens.fill_(self._pad)
        self._ended.fill_(False)
        self._count.zero_()
        self._num_tokens.zero_()
        width = self.shape.bucket
        self._slot.fill_(width - 1)
        positions = (self._seen[:, :width].cumsum(-1) - 1).clamp(min=0)
        self._position.copy_(positions[:, -1:])
        slots = torch.arange(width, device=self._device)
        logits = self._forward(self._ids, positions, self._mask(width), slots)
        return self._choose(logits, kind)

    def _decode(self, kind: _Kind) -> Tensor:
        self._slot.add_(1)
        self._position.add_(1)
        self._seen.index_copy_(1, self._slot, self._one)
        logits = self._forward(self._token, self._position, self._mask(1), self._slot)
        return self._choose(logits, kind)

    def _mask(self, num_queries: int) -> Tensor:
        """Returns what is added to the scores of the prompt or of a token.

        With ALiBi it returns the slots that are seen. A mask in its final form keeps transformers
        from looking at its values, for which the host would wait.
        """
        if not self._has_positions:
            return self._seen
        sees = self._seen[:, None, None, :].bool()
        if num_queries > 1:
            slots = torch.arange(self.shape.num_slots, device=self._device)
            sees = sees & (slots <= slots[:num_queries, None])
        return torch.zeros_like(sees, dtype=self._dtype).masked_fill(~sees, self._least)

    def _forward(self, input_ids: Tensor, positions: Tensor, mask: Tensor, slots: Tensor) -> Tensor:
        """Returns the logits [B, V] float32 after the last of some tokens [B, t]."""
        given: dict[str, Any] = {"attention_mask": mask, self._takes_cache_as: self._cache}
        if self._has_positions:
            given["position_ids"] = positions
        if "cache_position" in self._takes:  # transformers before 5
            given["cache_position"] = slots
        if "logits_to_keep" in self._takes:
            given["logits_to_keep"] = 1
        out = self._model(input_ids=input_ids, use_cache=True, **given)
        logits: Tensor = out[0][:, -1].float()
        return logits

    def _choose(self, logits: Tensor, kind: _Kind) -> Tensor:
        if kind.is_sampled:
            noise = self._noise.index_select(1, self._count)
            top_p = self._top_p if kind.has_top_p else None
            token = sample(logits, noise, self._temperature, top_p, kind.top_k)
        else:
            token = greedy(logits)
        token = torch.where(self._ended, self._pad, token[:, None])
        self._num_tokens.add_((~self._ended).sum())
        self._token.copy_(token)
        self._tokens.index_copy_(1, self._count, token)
        self._count.add_(1)
        self._ended.logical_or_((token == self._ends).any(-1, keepdim=True))
        self._all_ended.copy_(self._ended.all())
        return logits
