"""Has the LightningModule: a language model that learns, is judged by perplexity, and writes.

Shapes: B rows, T tokens of a block, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import BloomConfig, BloomForCausalLM, PreTrainedModel

from lightning_gaudi.inference import Engine, card_memory_bytes, pad_left, parallelize, to_fp8
from lightning_gaudi.untrusted import printable
from recipes.common.errors import UserError
from recipes.common.folders import prediction_path, write_predictions
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Row, Section, section, table
from recipes.common.tokenization import check_vocabulary, load_tokenizer, published_tokenizer
from recipes.common.training import SPLITS, RecipeModule
from recipes.common.writing import Writer, WritingSettings, continuation
from recipes.text_generation import pretrained
from recipes.text_generation.data import TextData

_FILE = "texts.jsonl"
_SHOWN = 4
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
_NUM_MEASURED = 16
"""Prompts by which scales of fp8 are found."""
_WRITING = tuple(WritingSettings.__dataclass_fields__)


class TextGeneration(RecipeModule):
    """Trains a new Bloom, or a published decoder-only model of transformers.

    Nothing in a training step waits for the device, and all blocks have one shape.

    Args:
        name: name of a published model (bigscience/bloomz-7b1, ...), or a folder that
            `save_pretrained` or `export` wrote; None makes a new model of the following sizes.
        vocab_size: number of token embeddings (V).
        hidden_size: width.
        num_layers: number of blocks.
        num_heads: number of attention heads.
        dropout: dropout of hidden states and of attention; of a model from nothing.
        initializer_range: standard deviation of the initial weights of a new model.
        attention: transformers' `attn_implementation`: eager, sdpa or gaudi_fused_sdpa (the
            vendor's kernel); None for transformers' default.
        tokenizer: name or folder of the tokenizer, which is checked against the model.
        optimizer: auto (AdamW: the vendor's kernel on an HPU that has all of each weight, torch's
            elsewhere), adamw or lamb (torch's), fused_adamw or fused_lamb (the vendor's kernels
            for hpu; an error elsewhere).
        learning_rate: the learning rate at its peak.
        schedule: schedule of the learning rate: linear, cosine, polynomial or constant.
        warmup_steps: steps of increase to the peak; below 1, a share of the run.
        weight_decay: weight decay of all weights but biases and norms.
        betas: the optimizer's betas.
        epsilon: the optimizer's epsilon, which is added to the denominator of its step.
        max_grad_norm: for lamb and fused_lamb; the others take `trainer.gradient_clip_val`.
        dtype: of the weights in prediction: fp32, bf16, or fp8, which is bf16 with linear layers
            whose weights and products are in fp8; `validate` and `test` judge it. Its scales are
            found by the first prompts. Training wants fp32; see trainer.precision.
        max_new_tokens: tokens that `predict` adds to each prompt.
        temperature: 0 takes the likeliest token each time; otherwise tokens are drawn.
        top_k: draws among the k likeliest tokens only; None draws among all.
        top_p: draws among the likeliest tokens that together have this probability; None draws
            among all.
        sampling_seed: seed of the draws; prompt number i draws with this plus i, in any batch.
        engine: how a token's step is run: auto, graph (HPU graphs; lazy mode), compile (eager
            mode) or none.
        check_end_every: after how many tokens the host asks the device whether all texts of the
            batch have ended; None never asks, so nothing waits.
        stop_at_end: ends a text at the end-of-sequence token; False writes on.
        num_warmup: generations of each shape before those that are measured.
        predictions: the file that `predict` writes, with one JSON object a line; None writes
            texts.jsonl in the folder of the checkpoint's run.

    Raises:
        UserError: The model cannot be read, does not generate text or does not suit the tokenizer,
            or settings contradict each other.
    """

    validation_score = "val/perplexity"

    def __init__(
        self,
        name: str | None = None,
        vocab_size: int = 1024,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        attention: str | None = None,
        tokenizer: str | None = None,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 3e-3,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = EPSILON,
        max_grad_norm: float | None = 1.0,
        dtype: Literal["fp32", "bf16", "fp8"] = "fp32",
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        sampling_seed: int = 0,
        engine: Engine = "auto",
        check_end_every: int | None = None,
        stop_at_end: bool = True,
        num_warmup: int = 1,
        predictions: str | None = None,
    ) -> None:
        super().__init__()
        given = dict(locals())
        self.writing = WritingSettings(**{each: given[each] for each in _WRITING})
        # How and where to write is no property of the model, so a checkpoint must not set it.
        self.save_hyperparameters(ignore=[*_WRITING, "dtype", "predictions"])
        self._writing_dtype: torch.dtype = _DTYPES[dtype]
        self._is_fp8 = dtype == "fp8"
        self._predictions = predictions
        self._without_weights: list[PreTrainedModel] = []
        """A published model until it is loaded. In a list, as no part of this module: should
        something fail before, Lightning moves all parts to the CPU, which those on meta refuse."""
        if name:
            self._without_weights = [self._pretrained()]
        else:
            self.model = self._from_nothing()
        self._is_configured = self._is_converted = False
        self._writer: Writer | None = None
        self.num_cards = 1
        """The number of cards that hold a model together."""

    def prepare_data(self) -> None:
        """Downloads a published model, once a machine."""
        if self.hparams["name"]:
            pretrained.download(self.hparams["name"])

    def configure_model(self) -> None:
        """Divides the model under `ModelParallelStrategy`, and loads a published one."""
        if self._is_configured:
            return
        mesh = None if self.device_mesh is None else self.device_mesh["tensor_parallel"]
        self.num_cards = 1 if mesh is None else mesh.size()
        name = self.hparams["name"]
        model = self._without_weights[0] if name else self.model
        if name and self.trainer.state.fn == "predict":
            self._check_memory(model)
        if mesh is not None and self.num_cards > 1:
            try:
                parallelize(model, mesh)
            except ValueError as error:
                raise UserError(str(error)) from error
        if name:
            pretrained.load(model, name, self.trainer.strategy.root_device)
            self.model = model.requires_grad_(self.num_cards == 1)
        self._is_configured, self._without_weights = True, []

    def setup(self, stage: str) -> None:
        """Refuses to train a model that cannot be trained."""
        if stage != "fit":
            return
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            raise UserError(
                "trainer.strategy is ModelParallelStrategy, which is for `predict`, `validate` and "
                "`test` in this recipe: parts of a model are not trained. For `fit` leave it out: "
                "each card has the whole model then."
            )
        if self._writing_dtype != torch.float32:
            kind = "fp8" if self._is_fp8 else "bf16"
            raise UserError(
                f"model.dtype={kind} is for `predict`: weights are trained in fp32. Set "
                f"model.dtype=fp32 and trainer.precision={'fp8' if self._is_fp8 else 'bf16-mixed'}."
            )

    def forward(self, batch: Mapping[str, Tensor], scores: bool = False) -> Tensor:
        """Returns the mean loss; for scores [2] float32, the sum of losses and their number."""
        logits = self.model(input_ids=batch["input_ids"], use_cache=False).logits
        rows, labels = logits.flatten(0, 1).float(), batch["labels"].flatten()
        if scores:
            loss = F.cross_entropy(rows, labels, reduction="sum")  # -100: rows that only fill
            return torch.stack((loss, (labels >= 0).sum().float()))
        return F.cross_entropy(rows, labels)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return {"loss": self(batch)}

    def on_validation_start(self) -> None:
        """Converts a model that is judged in fp8."""
        self._convert()

    def on_test_start(self) -> None:
        """Converts a model that is judged in fp8."""
        self._convert()

    def on_predict_start(self) -> None:
        """Prepares the model to write; see `writing.py`."""
        data = self._data()
        self.model.to(dtype=self._writing_dtype)
        self._convert()
        buckets = data.hparams["prompt_buckets"]
        self._writer = Writer(self.model, self.writing, data.get_tokenizer(), buckets)
        self._writer.check(data.read_prompts())

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[int]:
        """Returns the numbers of the prompts; what follows them is written at the end."""
        assert self._writer is not None
        return self._writer.write(batch)

    def on_predict_epoch_end(self) -> None:
        """Writes the texts of all cards to one file, in the order of the prompts, and the pace."""
        assert self._writer is not None
        data, tokenizer = self._data(), self._data().get_tokenizer()
        prompts, lines, num_tokens = data.read_prompts(), [], self.writing.max_new_tokens
        for index, tokens in self._writer.read().items():
            prompt = prompts[index]
            text = continuation(tokenizer, prompt.tokens, tokens)
            row = {"index": index, "prompt": prompt.text, "text": text, "tokens": tokens}
            if prompt.following:
                row["reference"] = tokenizer.decode(prompt.following[:num_tokens])
            lines.append((index, json.dumps(row, ensure_ascii=False)))
        path = prediction_path(self.trainer, _FILE, self._predictions)
        write_predictions(self.trainer, path, lines)
        self._print(path)

    def report_sections(self, stage: str) -> list[Section]:
        """Returns perplexity of the model, and of the baselines that it must beat."""
        metrics, data = self.trainer.callback_metrics, self._data()
        if f"{stage}/perplexity" not in metrics:
            return []
        split, perplexity = SPLITS[stage], float(metrics[f"{stage}/perplexity"])
        baselines = data.baselines(split)
        least = min(baselines.values())
        goal = ("less than both below", perplexity < least)
        rows = [Row("model", f"{perplexity:.1f}", *goal)]
        rows += [Row(name, f"{value:.1f}") for name, value in baselines.items()]
        title = f"Perplexity ({split}: {data.num_judged(split):,} tokens, {data.origin})"
        return [section(title, rows)]

    def references(self, name: str) -> dict[str, float]:
        """Returns the perplexity, or the loss, of the better baseline."""
        baselines = self._data().baselines("validation")
        best = min(baselines, key=lambda each: baselines[each])
        if name == "loss":
            return {best: math.log(baselines[best])}
        return {best: baselines[best]} if name == self.validation_score else {}

    def figures(self) -> dict[str, float]:
        """Returns what `predict` measured, by the names of published figures."""
        latency = self._writer.latency() if self._writer else None
        return {} if latency is None else {"latency_seconds": latency.seconds / latency.num_calls}

    def log_evaluation(self, stage: str) -> None:
        """Logs means over the tokens of all processes, which are read at once."""
        loss, num_tokens = self.read_totals()
        mean = loss / max(num_tokens, 1.0)
        self.log_on_host({f"{stage}/loss": mean, f"{stage}/perplexity": math.exp(mean)}, True)

    def _print(self, path: Path) -> None:
        """Shows some of the texts, and how fast they were written."""
        assert self._writer is not None
        if not self.trainer.is_global_zero:
            return
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for _, line in zip(range(_SHOWN), lines, strict=False)]
        for row in rows:
            text = f"{row['prompt']}|{row['text']}"
            print(f"  {row['index']}  {printable(' '.join(text.splitlines()))}")
        print(table([self._writer.section(self._whose_pace())]), flush=True)

    def _whose_pace(self) -> str:
        num_groups = self.trainer.world_size // self.num_cards
        model = f"one model on {self.num_cards} cards" if self.num_cards > 1 else "the first card"
        if num_groups > 1:
            return f"Pace of {model}, one of {num_groups}"
        return f"Pace of {model}" if self.num_cards > 1 else "Pace"

    def _convert(self) -> None:
        """Keeps and multiplies weights of linear layers in fp8, once, if that is asked for.

        Scales are found by the same prompts on all cards, so that a text does not depend on them.
        """
        if not self._is_fp8 or self._is_converted:
            return
        if self.device.type != "hpu":
            raise UserError(
                "model.dtype=fp8 multiplies by kernels of an HPU, and trainer.accelerator is "
                f"{self.device.type}. Set trainer.accelerator=hpu, or model.dtype=bf16."
            )
        if self.num_cards > 1:
            raise UserError(
                f"model.dtype=fp8 needs whole weights on a card, and {self.num_cards} cards hold "
                "this model in parts. Leave trainer.strategy out, or set model.dtype=bf16."
            )
        data = self._data()
        prompts = [each.tokens for each in data.read_prompts()[:_NUM_MEASURED]]
        buckets = sorted(data.hparams["prompt_buckets"])
        tokens, seen = pad_left(prompts, buckets, data.pad_token_id)
        given = {"input_ids": tokens.to(self.device), "attention_mask": seen.to(self.device)}
        self.model.to(dtype=self._writing_dtype)
        try:
            names = to_fp8(self.model, lambda: self.model(**given, use_cache=False))
        except ValueError as error:
            raise UserError(f"model.dtype=fp8: {error}") from error
        self._is_converted = True
        rank_zero_info(
            f"{len(names)} linear layers compute in fp8, with scales of the first {len(prompts)} "
            "prompt(s)."
        )

    def _data(self) -> TextData:
        return self.data_of(TextData, "tokenizer and prompts")

    def _check_memory(self, model: PreTrainedModel) -> None:
        """Checks the memory before anything is loaded; how much the host has left is not known."""
        device, data = self.trainer.strategy.root_device, self._data()
        capacity = card_memory_bytes() if device.type == "hpu" else None
        num_tokens = max(data.hparams["prompt_buckets"]) + self.writing.max_new_tokens
        batch_size = data.prompts_per_batch(len(data.read_prompts()))
        pretrained.check_memory(model, self.num_cards, batch_size, num_tokens, capacity)

    def _pretrained(self) -> PreTrainedModel:
        settings = self.hparams
        name = settings["name"]
        tokenizer = published_tokenizer(name, settings["tokenizer"])
        model = pretrained.make_on_meta(name, self._writing_dtype, settings["attention"])
        num_tokens = len(load_tokenizer(tokenizer, ("eos_token",), "text generation"))
        check_vocabulary(tokenizer, num_tokens, name, model.config.vocab_size)
        return model

    def _from_nothing(self) -> BloomForCausalLM:
        settings = self.hparams
        if settings["hidden_size"] % settings["num_heads"]:
            raise UserError(
                f"model.hidden_size={settings['hidden_size']} is no multiple of "
                f"model.num_heads={settings['num_heads']}."
            )
        config = BloomConfig(
            vocab_size=settings["vocab_size"],
            hidden_size=settings["hidden_size"],
            n_layer=settings["num_layers"],
            n_head=settings["num_heads"],
            hidden_dropout=settings["dropout"],
            attention_dropout=settings["dropout"],
            initializer_range=settings["initializer_range"],
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
        )
        if settings["attention"] is not None:
            config._attn_implementation = settings["attention"]
        return BloomForCausalLM(config)
