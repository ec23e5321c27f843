"""Has the LightningModule: T5 that learns to summarize, and writes and scores summaries.

Shapes: B rows, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import T5Config, T5ForConditionalGeneration

from lightning_gaudi import vendor
from lightning_gaudi.inference import has_values
from recipes.common.errors import UserError
from recipes.common.folders import prediction_path, write_predictions
from recipes.common.hub import load_pretrained
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Section, section
from recipes.common.tokenization import T5_TOKENS, load_tokenizer, published_tokenizer
from recipes.common.training import SPLITS, RecipeModule
from recipes.t5_summarization.data import IGNORED, SummarizationData
from recipes.t5_summarization.generation import generate
from recipes.t5_summarization.rouge import NAMES
from recipes.t5_summarization.sharding import call_blocks, shard
from recipes.t5_summarization.stacks import Inputs, decode, encode, inputs_of
from recipes.t5_summarization.summaries import score_summaries

_FILE = "summaries.jsonl"
_ATTENTION = "eager"
"""It exists in every transformers; other implementations use it for T5's position biases."""


class T5Summarization(RecipeModule):
    """Trains T5, T5 1.1 or flan-T5, from the hub, from a folder or from nothing.

    Nothing in a training step waits for the device, and a bucket has one shape. The loss is the
    sum over the target tokens, divided by the same number in every batch (`mean_targets`, what a
    batch has on average): each token weighs the same, and gradients that are accumulated or
    averaged over cards are exactly those of one large batch. The logged `summary_loss` is the mean
    over the tokens of its batch.

    Args:
        name: of a published model (t5-3b, t5-small, google/flan-t5-base, ...), or a folder that
            `save_pretrained` or `export` wrote; None starts from random weights of these sizes:
        vocab_size: number of token embeddings (V).
        d_model: width.
        d_kv: width of a head.
        d_ff: width of the feed-forward layers.
        num_layers: number of blocks of the encoder, and of the decoder.
        num_heads: number of attention heads.
        feed_forward: relu (T5) or gated-gelu (T5 1.1, flan-T5).
        dropout: dropout of a new model, and of a published one.
        tokenizer: name or folder of the tokenizer, which is checked against the model.
        max_target_length: tokens that are generated (T).
        gradient_checkpointing: recompute each block in the backward pass: a fraction of the memory
            for activations, about a third more computation, the same gradients to the bit.
        optimizer: auto (AdamW: the vendor's kernel on an HPU that has all of each weight, torch's
            elsewhere), adamw or lamb (torch's), fused_adamw or fused_lamb (the vendor's kernels
            for hpu; an error elsewhere).
        learning_rate: the learning rate at its peak.
        schedule: schedule of the learning rate: linear, cosine, polynomial or constant.
        warmup_steps: steps of increase to the peak; below 1, a share of the run.
        weight_decay: weight decay of all weights but norms.
        betas: the optimizer's betas.
        epsilon: the optimizer's epsilon, which is added to the denominator of its step.
        max_grad_norm: for lamb and fused_lamb; the others take `trainer.gradient_clip_val`.
        predictions: the file that `predict` writes, one JSON object a line; None: summaries.jsonl
            in the folder of the run that the checkpoint is from.
    """

    progress_loss = "summary_loss"
    validation_score = "val/rougeL"

    def __init__(
        self,
        name: str | None = None,
        vocab_size: int = 768,
        d_model: int = 64,
        d_kv: int = 16,
        d_ff: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        feed_forward: str = "relu",
        dropout: float = 0.1,
        tokenizer: str | None = None,
        max_target_length: int = 128,
        gradient_checkpointing: bool = False,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 1e-4,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = EPSILON,
        max_grad_norm: float = 1.0,
        predictions: str | None = None,
    ) -> None:
        super().__init__()
        # Where to write is no property of the model, so a checkpoint must not set it.
        self.save_hyperparameters(ignore=["predictions"])
        self._predictions = predictions
        self.model = self._pretrained() if name else self._from_nothing()
        self._check_tokenizer()
        self._written: list[tuple[Tensor, Tensor, list[int]]] = []

    def configure_model(self) -> None:
        """Divides the model under `ModelParallelStrategy`; see `sharding.py`."""
        if self.device_mesh is not None:
            shard(self, self.model, self.device_mesh)
        elif self.hparams["gradient_checkpointing"] or (
            self._trainer is not None and isinstance(self.trainer.strategy, DeepSpeedStrategy)
        ):
            call_blocks(self.model)  # each is compiled by itself

    compile_methods = ("inputs", "losses")
    """What is beside the blocks, where these are compiled one by one: it calls no module."""

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns logits [B, T, V] of summaries' tokens, from the article and earlier tokens."""
        recompute = self.hparams["gradient_checkpointing"] and self.training
        target_ids = batch.get("labels_sequence_ids")  # of packed rows
        mask = batch["sequence_ids" if target_ids is not None else "attention_mask"]
        inputs = self.inputs(mask, batch["labels"], target_ids)
        encoded = encode(self.model, batch["input_ids"], inputs.source, recompute)
        target = inputs.target, inputs.source_mask
        return decode(self.model, inputs.shifted, encoded, *target, recompute)

    def inputs(self, mask: Tensor, labels: Tensor, target_ids: Tensor | None) -> Inputs:
        """Returns masks, distances of tokens, and the summaries shifted right: see `inputs_of`."""
        return inputs_of(self.model, mask, labels, target_ids)

    def losses(self, logits: Tensor, labels: Tensor, mean_targets: float) -> tuple[Tensor, Tensor]:
        """Returns the loss that is trained, and the mean over the tokens of this batch."""
        loss, num_targets = _sum_of_losses(logits, labels)
        return loss / mean_targets, loss.detach() / num_targets

    def forward(self, batch: Mapping[str, Any], scores: bool = False) -> dict[str, Tensor] | Tensor:
        """Returns the losses; for scores [2] float32, the loss of all tokens and their number."""
        logits, labels = self.logits(batch), batch["labels"]
        if scores:
            return torch.stack(_sum_of_losses(logits, labels))
        loss, summary_loss = self.losses(logits, labels, batch["mean_targets"])
        return {"loss": loss, "summary_loss": summary_loss}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self(batch)  # type: ignore[no-any-return]

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self._written = []

    def validation_step(
        self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Computes the loss of all rows, and writes summaries of the second loader's rows."""
        if dataloader_idx == 0:
            super().validation_step(batch, batch_idx)
        else:
            self._written.append(self.summarize(batch))

    def on_predict_epoch_start(self) -> None:
        self._written = []

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[int]:
        """Returns the numbers of the rows; their summaries are written at the end."""
        self._written.append(self.summarize(batch))
        return batch["indices"]  # type: ignore[no-any-return]

    def on_predict_epoch_end(self) -> None:
        """Writes the summaries of all cards to one file, in the order of the articles."""
        rows = self._data().rows_to_generate("test")
        lines = [
            (index, json.dumps({"id": rows[index].id, "summary": summary}))
            for index, summary in self._read_summaries()
        ]
        path = prediction_path(self.trainer, _FILE, self._predictions)
        write_predictions(self.trainer, path, lines)

    def summarize(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, list[int]]:
        """Returns tokens [B, T] and which rows are real [B], on the device; and rows' numbers."""
        cut = vendor.mark_step if self.device.type == "hpu" else lambda: None
        length = self.hparams["max_target_length"]
        # Each token uses the same buffers, so that two are enough for a plan, which reads no text.
        is_planned = not has_values() and self.trainer.state.fn == "fit"
        tokens = generate(
            self.model,
            batch["input_ids"],
            batch["attention_mask"],
            length,
            cut,
            num_steps=2 if is_planned else None,
        )
        return tokens, batch["is_real"], batch["indices"]

    def _read_summaries(self) -> list[tuple[int, str]]:
        """Returns each row's number and summary; waits for the device once for all batches."""
        tokenizer, summaries = self._data().tokenizer, []
        assert tokenizer is not None  # the batches came from it
        for tokens, is_real, indices in self._written:
            texts = tokenizer.batch_decode(tokens.cpu(), skip_special_tokens=True)
            rows = zip(indices, texts, is_real.tolist(), strict=True)
            summaries += [(index, text.strip()) for index, text, real in rows if real]
        self._written = []
        return summaries

    def log_evaluation(self, stage: str) -> None:
        """Logs the loss, and ROUGE of the model beside that of summaries without learning."""
        loss, num_targets = self.read_totals()
        self.log_on_host({f"{stage}/loss": loss / max(num_targets, 1.0)}, prog_bar=True)
        data = self._data()
        if not (rows := data.rows_to_generate(SPLITS[stage])):
            return
        sums = score_summaries(self._read_summaries(), rows, data.baselines)
        totals = self.sum_over_ranks(torch.tensor(list(sums.values()), device=self.device))
        scores = dict(zip(sums, totals, strict=True))
        count = max(scores.pop("count"), 1.0)
        means = {f"{stage}/{name}": value / count for name, value in scores.items()}
        shown = (f"{stage}/rougeL", f"{stage}/lead1_rougeL")
        self.log_on_host({name: means.pop(name) for name in shown}, prog_bar=True)
        self.log_on_host(means)

    def report_sections(self, stage: str) -> list[Section]:
        """Returns ROUGE of the model, and of summaries without learning."""
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        names = ["", *(f"{name}_" for name in self._data().baselines)]
        rows = [
            (label, ", ".join(f"{measure} {value:.2f}" for measure, value in found.items()))
            for label, found in ((name, _rouge(metrics, f"{stage}/{name}")) for name in names)
            if found
        ]
        named = [(label.rstrip("_") or "model", text) for label, text in rows]
        return [section(f"ROUGE ({stage})", named)]

    def references(self, name: str) -> dict[str, float]:
        """Returns ROUGE-L of summaries without learning."""
        metrics = self.trainer.callback_metrics
        found = {each: metrics.get(f"val/{each}_rougeL") for each in self._data().baselines}
        if name != self.validation_score:
            return {}
        return {each: float(value) for each, value in found.items() if value is not None}

    def _data(self) -> SummarizationData:
        return self.data_of(SummarizationData, "tokenizer and references")

    def _pretrained(self) -> T5ForConditionalGeneration:
        settings = self.hparams
        published_tokenizer(settings["name"], settings["tokenizer"])
        model = load_pretrained(
            T5ForConditionalGeneration,
            "model.name",
            settings["name"],
            torch_dtype=torch.float32,  # flan-T5 is published in bfloat16 too
            dropout_rate=settings["dropout"],
            attn_implementation=_ATTENTION,
        )
        if getattr(model.config, "decoder_start_token_id", None) is None:  # missing on 5.x
            model.config.decoder_start_token_id = model.config.pad_token_id
        return model.train()

    def _from_nothing(self) -> T5ForConditionalGeneration:
        names = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
        config = T5Config(
            **{name: self.hparams[name] for name in names},
            dropout_rate=self.hparams["dropout"],
            feed_forward_proj=self.hparams["feed_forward"],
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            attn_implementation=_ATTENTION,
        )
        return T5ForConditionalGeneration(config)

    def _check_tokenizer(self) -> None:
        """Refuses a tokenizer with tokens that the model does not know, or has by other ids."""
        name, config = self.hparams["tokenizer"], self.model.config
        if name is None:
            return
        tokenizer = load_tokenizer(name, tuple(T5_TOKENS), "T5")
        of = f"model.name={self.hparams['name']}" if self.hparams["name"] else "the model"
        if len(tokenizer) > config.vocab_size:
            raise UserError(
                f"data.tokenizer={name} has {len(tokenizer)} tokens, but {of} has embeddings for "
                f"{config.vocab_size}. Name the tokenizer of that model, or for a model from "
                f"nothing set data.vocab_size={len(tokenizer)}."
            )
        for token in ("pad_token_id", "eos_token_id"):
            if (theirs := getattr(tokenizer, token)) != (ours := getattr(config, token)):
                raise UserError(
                    f"data.tokenizer={name} has {token} {theirs}, but {of} has {ours}: it is the "
                    "tokenizer of another model. Name the one that the model was trained with."
                )


def _rouge(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name: metrics[prefix + name] for name in NAMES if prefix + name in metrics}


def _sum_of_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum of the cross-entropies of summaries' tokens, and their number; float32."""
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return loss, (labels != IGNORED).sum().float()
