"""Writes texts for batches of prompts in `predict`, and measures how long that takes.

Shapes: B prompts of a batch, T tokens that they are padded to, N new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi.inference import (
    Engine,
    LatencyReport,
    Sampling,
    Stopwatch,
    TextGenerator,
)
from recipes.common.errors import UserError
from recipes.common.prompts import Prompt
from recipes.common.sections import Row, Section, section

_FILLS = -1


@dataclass(frozen=True)
class WritingSettings:
    """Says how texts are written; none of it belongs to the weights."""

    max_new_tokens: int
    """The number of new tokens (N)."""
    temperature: float
    """The temperature; 0 takes the likeliest token each time."""
    top_k: int | None
    top_p: float | None
    sampling_seed: int
    """The seed of prompt 0; prompt number i draws with this plus i."""
    engine: Engine
    check_end_every: int | None
    stop_at_end: bool
    num_warmup: int
    """The number of first generations of each shape that are not measured."""

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other, and names them as the user typed them."""
        for name, least in (("max_new_tokens", 1), ("num_warmup", 0), ("check_end_every", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"model.{name}={value} must be at least {least}.")
        if self.temperature < 0:
            raise UserError(
                f"model.temperature={self.temperature} must be 0, for the likeliest token each "
                "time, or more, to draw tokens."
            )
        drawing = {name: getattr(self, name) for name in ("top_k", "top_p")}
        for name, value in drawing.items():
            if value is not None and not self.temperature:
                raise UserError(
                    f"model.{name}={value} is for drawing tokens, but model.temperature=0 takes "
                    "the likeliest. Set model.temperature=1, for instance, or leave it out."
                )
        if self.check_end_every and not self.stop_at_end:
            raise UserError(
                f"model.check_end_every={self.check_end_every} asks whether all texts have ended, "
                "but model.stop_at_end=false lets none end. Leave one of them out."
            )
        try:
            _ = self.sampling
        except ValueError as error:
            raise UserError(f"model.{error}") from error

    @property
    def sampling(self) -> Sampling | None:
        """The way tokens are drawn; None takes the likeliest each time."""
        if not self.temperature:
            return None
        return Sampling(self.temperature, top_k=self.top_k, top_p=self.top_p)


class Writer:
    """Writes texts with a model, and keeps them on the device until they are read.

    Args:
        model: of transformers, on its device.
        settings: how.
        tokenizer: the model's.
        buckets: lengths that prompts are padded to.

    Raises:
        UserError: for a model that cannot generate here.
    """

    def __init__(
        self, model: Any, settings: WritingSettings, tokenizer: Any, buckets: Sequence[int]
    ) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.ends = _ends(model, tokenizer) if settings.stop_at_end else []
        try:
            self.generator = TextGenerator(
                model,
                settings.engine,
                sorted(buckets),
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=self.ends,
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        self._stopwatch = Stopwatch(next(model.parameters()).device, num_warmup_calls=0)
        self._warm: set[torch.Size] = set()
        self._written: list[tuple[list[int], Tensor]] = []
        self._num_tokens = 0

    def check(self, prompts: Sequence[Prompt], *, can_cut: bool = True) -> None:
        """Refuses prompts that with what follows have more tokens than the model has positions.

        Args:
            prompts: all of them.
            can_cut: whether a setting cuts them.

        Raises:
            UserError: naming the first of them.
        """
        config, wanted = self.generator.model.config, self.settings.max_new_tokens
        limit = getattr(config.get_text_config(), "max_position_embeddings", None)
        for number, prompt in enumerate(prompts, 1):
            if limit is not None and len(prompt.tokens) + wanted - 1 > limit:
                cut = f"Cut prompts with data.prompt_tokens={limit - wanted}" if can_cut else ""
                raise UserError(
                    f"Prompt {number} of {len(prompts)} has {len(prompt.tokens)} tokens and "
                    f"model.max_new_tokens is {wanted}, but the model has {limit} positions: "
                    f"{prompt.text!r:.60}. {cut or 'Ask for less'} or set model.max_new_tokens to "
                    "fewer."
                )

    def write(self, batch: Mapping[str, Any]) -> list[int]:
        """Generates texts for a batch; for the first of its shape several times, to warm up.

        Args:
            batch: input_ids and attention_mask [B, T] of the device, and lists of B: the numbers
                of the prompts, and is_real, False for rows that only fill.

        Returns:
            The numbers of the prompts; `read` returns the texts.

        Raises:
            UserError: for prompts that do not fit the model.
        """
        shape, num_real = batch["input_ids"].shape, sum(batch["is_real"])
        try:
            for _ in range(0 if shape in self._warm else self.settings.num_warmup):
                self._generate(batch)
            self._warm.add(shape)
            with self._stopwatch.call(num_real):
                tokens = self._generate(batch)
        except ValueError as error:
            raise UserError(str(error)) from error
        # Rows that only fill get the number -1; leaving them out here would make another shape.
        given: list[int] = batch["numbers"]
        pairs = zip(given, batch["is_real"], strict=True)
        numbers = [number if is_real else _FILLS for number, is_real in pairs]
        self._written.append((numbers, tokens))
        return given

    def read(self) -> dict[int, list[int]]:
        """Waits for the device once for all batches; returns the new tokens by the prompt's number.

        A text's last token is its end. Rows that fill up a batch are left out.
        """
        found = {}
        for numbers, tokens in self._written:
            rows = zip(numbers, tokens.tolist(), strict=True)
            found |= {number: self._cut(row) for number, row in rows if number != _FILLS}
        self._written = []
        self._num_tokens = sum(map(len, found.values()))
        return found

    def latency(self) -> LatencyReport | None:
        """The report on the batches that were measured, once they are read; None without any.

        Tokens of rows that only fill are not counted.
        """
        try:
            return replace(self._stopwatch.report(), num_tokens=self._num_tokens)
        except ValueError:  # no batch came to this rank
            return None

    def section(self, title: str) -> Section:
        """Returns the pace, as lines of a report."""
        latency = self.latency()
        if latency is None:
            return section(title, [("measured", "nothing")])
        shapes = len(self._warm)
        warmup = f"{self.settings.num_warmup} of each of {shapes} shape(s), not measured"
        lines = (line.split("  ", 1) for line in str(latency).splitlines()[1:])
        rows = [Row(name.strip(), value.strip()) for name, value in lines]
        first = [Row("engine", self.generator.engine), Row("warm-up", warmup)]
        return section(title, [*first, *rows])

    def _generate(self, batch: Mapping[str, Any]) -> Tensor:
        settings, sampling = self.settings, self.settings.sampling
        seeds = None
        if sampling is not None:
            seeds = [settings.sampling_seed + number for number in batch["numbers"]]
        return self.generator(
            batch["input_ids"],
            batch["attention_mask"],
            settings.max_new_tokens,
            sampling=sampling,
            seeds=seeds,
            check_end_every=settings.check_end_every,
            check_prompts=False,  # done by `check`, since the mask is on the device already
            stopwatch=self._stopwatch if self._stopwatch.is_running else None,
        )

    def _cut(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self.ends), None)
        return tokens if end is None else tokens[: end + 1]


def continuation(tokenizer: Any, prompt: list[int], tokens: list[int]) -> str:
    """Returns the text of the new tokens, decoded behind the prompt, as some begin with a space."""
    start, whole = (
        tokenizer.decode(each, skip_special_tokens=True) for each in (prompt, [*prompt, *tokens])
    )
    if whole.startswith(start):
        return str(whole[len(start) :])
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Returns the end tokens of the model, of which there may be several; else the tokenizer's."""
    configs = (getattr(model, "generation_config", None), model.config)
    found = (getattr(config, "eos_token_id", None) for config in configs)
    own = next((value for value in found if value is not None), tokenizer.eos_token_id)
    return list(own) if isinstance(own, list | tuple) else [own]
