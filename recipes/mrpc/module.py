"""Has the LightningModule: BERT that decides whether two sentences say the same.

Shapes: B rows of a batch, K pairs that a packed row may hold, N pairs of a batch (B, or B * K
places for pairs), T tokens of a row, S evaluation steps, R ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torchmetrics.functional.classification import binary_accuracy, binary_f1_score
from transformers import AutoConfig, BertConfig, BertForSequenceClassification

from lightning_gaudi.data import block_diagonal_mask
from recipes.common.errors import UserError
from recipes.common.hub import load_pretrained
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Section, section
from recipes.common.training import SPLITS, RecipeModule
from recipes.mrpc.first_token import compute_first_token_alone, encode_first_tokens
from recipes.mrpc.predictions import SubmissionWriter
from recipes.mrpc.scratch import new_model

_IGNORED = -100
_NUM_LABELS = 2


class Mrpc(RecipeModule):
    """Fine-tunes a published BERT on sentence pairs, or trains a small one from scratch.

    Nothing in a training step waits for the device, and validation waits once, at its end.

    Args:
        name: name or folder of a pretrained BERT; None for a new one of the sizes below.
        vocab_size: number of token embeddings; a pretrained model must have as many.
        max_length: longest pair; a pretrained model must have as many positions.
        hidden_size: width of a new model.
        num_layers: number of encoder layers of a new model.
        num_heads: number of attention heads of a new model.
        dropout: dropout of states and of attention; None: as pretrained, 0.1 for a new model.
        initializer_range: standard deviation of the initial weights of a new model.
        optimizer: auto (AdamW: the vendor's kernel on an HPU that has all of each weight, torch's
            elsewhere), adamw or lamb (torch's), fused_adamw or fused_lamb (the vendor's kernels
            for hpu; an error elsewhere).
        learning_rate: the learning rate at its peak.
        schedule: linear, cosine, polynomial or constant after the warm-up.
        warmup_steps: 1 or more: steps of linear increase; below 1: a share of the run.
        weight_decay: weight decay of all weights but biases and layer norms.
        betas: the optimizer's betas.
        epsilon: the optimizer's epsilon, which is added to the denominator of its step.
        max_grad_norm: for lamb and fused_lamb; for the others set trainer.gradient_clip_val.

    Raises:
        UserError: for a model that cannot be had, is no BERT, or does not fit the tokenizer.
    """

    validation_score = "val/f1"

    def __init__(
        self,
        name: str | None = None,
        vocab_size: int = 3000,
        max_length: int = 128,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 2,
        dropout: float | None = None,
        initializer_range: float = 0.02,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 3e-5,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = EPSILON,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if name is None:
            config = BertConfig(
                vocab_size=vocab_size,
                max_position_embeddings=max_length,
                hidden_size=hidden_size,
                num_hidden_layers=num_layers,
                num_attention_heads=num_heads,
                intermediate_size=4 * hidden_size,
                hidden_dropout_prob=0.1 if dropout is None else dropout,
                attention_probs_dropout_prob=0.1 if dropout is None else dropout,
                initializer_range=initializer_range,
                num_labels=_NUM_LABELS,
                attn_implementation="sdpa",
            )
            self.model = new_model(config)
        else:
            self.model = _pretrained(name, vocab_size, max_length, dropout)
        compute_first_token_alone(self.model.bert.encoder)
        self.num_evaluated = 0
        """The number of pairs of the last evaluation, on all ranks."""
        self._evaluated: list[Tensor] = []

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns logits [N, 2], of which the second is that of a paraphrase."""
        bert, first = self.model.bert, batch.get("first_positions")  # of packed rows
        embedded = bert.embeddings(
            input_ids=batch["input_ids"],
            token_type_ids=batch["token_type_ids"],
            position_ids=batch.get("position_ids"),
        )
        # The layers take a ready additive mask on every transformers version. BertModel.forward
        # takes a 2D one, but looks at its values: the host would wait for the device.
        mask = (
            _additive_mask(batch["attention_mask"], embedded.dtype)
            if first is None
            else block_diagonal_mask(batch["sequence_ids"], embedded.dtype)
        )
        hidden = encode_first_tokens(bert.encoder, embedded, mask, first)
        pooled = bert.pooler(hidden.flatten(0, 1).unsqueeze(1))
        return self.model.classifier(self.model.dropout(pooled))

    def forward(self, batch: Mapping[str, Tensor], scores: bool = False) -> Tensor:
        """Returns the loss; for scores [B, 3] float32, the logits and the label.

        The loss is the mean over the pairs, and of packed rows the sum divided by `mean_pairs`, as
        many as a batch has on average: each pair weighs the same, and gradients that are averaged
        over batches and cards are those of one large batch.
        """
        logits, labels = self.logits(batch).float(), batch["labels"].flatten()
        if scores:
            return torch.cat([logits, labels[:, None]], dim=1)
        if (mean_pairs := batch.get("mean_pairs")) is None:
            return F.cross_entropy(logits, labels)
        return F.cross_entropy(logits, labels, reduction="sum") / mean_pairs

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return {"loss": self(batch)}

    def on_validation_epoch_start(self) -> None:
        self._evaluated = []

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Keeps logits and labels on the device until all batches are done."""
        self._evaluated.append(self(batch, scores=True))

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        """Returns what `SubmissionWriter` collects: [B] indices (-1: no pair) and predictions."""
        index = torch.where(batch["is_real"], batch["index"], -1)
        return {"index": index, "prediction": self.logits(batch).argmax(-1)}

    def configure_callbacks(self) -> list[Callback]:
        """Returns the callback that always writes what `predict` finds."""
        has_writer = any(isinstance(each, SubmissionWriter) for each in self.trainer.callbacks)
        return super().configure_callbacks() + ([] if has_writer else [SubmissionWriter()])

    def report_sections(self, stage: str) -> list[Section]:
        """Returns F1 and accuracy of the model, and of the baselines that it must beat."""
        metrics, data = self.trainer.callback_metrics, self.trainer.datamodule
        if f"{stage}/f1" not in metrics:
            return []
        split = SPLITS[stage]
        scores = {"model": (float(metrics[f"{stage}/f1"]), float(metrics[f"{stage}/accuracy"]))}
        scores |= data.baselines(split)
        rows = [
            (name, f"F1 {f1:.4f}, accuracy {accuracy:.4f}")
            for name, (f1, accuracy) in scores.items()
        ]
        num_pairs = len(data.pairs[split])
        if self.num_evaluated != num_pairs:
            rows.append(("of the model", f"measured on {self.num_evaluated} of the pairs only"))
        return [section(f"{split}: {num_pairs} pairs, {data.origin}", rows)]

    def references(self, name: str) -> dict[str, float]:
        """Returns F1 of the baselines."""
        if name != self.validation_score:
            return {}
        return {
            each: f1 for each, (f1, _) in self.trainer.datamodule.baselines("validation").items()
        }

    def untrained(self) -> str | None:
        """Names weights that have learnt nothing: a published BERT's head, if it had none."""
        name = self.hparams["name"]
        if name is None or _has_head(self.model.config):
            return super().untrained()
        return f"the weights of model.name={name} with a new head, which has learnt nothing"

    def log_evaluation(self, stage: str) -> None:
        """Brings the results of all ranks to the host at once, without rows that only fill.

        Here, not in each step: leaving out rows makes a shape that depends on the data.
        """
        # [S, B, 3] on one rank, else [R, S, B, 3]
        gathered: Any = self.all_gather(torch.stack(self._evaluated))
        self._evaluated = []
        rows = gathered.cpu().flatten(0, -2)
        rows = rows[rows[:, 2] != _IGNORED]
        self.num_evaluated = len(rows)
        logits, labels = rows[:, :2], rows[:, 2].long()
        predictions = logits.argmax(-1)
        self.log_on_host(
            {
                f"{stage}/f1": float(binary_f1_score(predictions, labels)),
                f"{stage}/accuracy": float(binary_accuracy(predictions, labels)),
            },
            prog_bar=True,
        )
        self.log_on_host({f"{stage}/loss": float(F.cross_entropy(logits, labels))})


def _pretrained(
    name: str, vocab_size: int, max_length: int, dropout: float | None
) -> BertForSequenceClassification:
    config = load_pretrained(AutoConfig, "model.name", name)
    if config.model_type != "bert":
        raise UserError(
            f"model.name={name} is a {config.model_type} model, but this recipe fine-tunes BERT. "
            "Name a BERT, such as bert-large-uncased-whole-word-masking."
        )
    if config.vocab_size != vocab_size:
        raise UserError(
            f"model.name={name} has embeddings for {config.vocab_size} tokens, but "
            f"data.vocab_size is {vocab_size}. Set data.tokenizer={name}, the tokenizer of the "
            f"model, and data.vocab_size={config.vocab_size}."
        )
    if config.max_position_embeddings < max_length:
        raise UserError(
            f"model.name={name} has {config.max_position_embeddings} positions, but "
            f"data.max_length is {max_length}. Set data.max_length={config.max_position_embeddings}"
            " or less."
        )
    if _has_head(config) and config.num_labels != _NUM_LABELS:
        raise UserError(
            f"model.name={name} has been fine-tuned for {config.num_labels} labels, and a pair has "
            f"one of {_NUM_LABELS}. Name the model that it was made from."
        )
    shares = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    model = load_pretrained(
        BertForSequenceClassification,
        "model.name",
        name,
        num_labels=_NUM_LABELS,
        attn_implementation="sdpa",
        **({} if dropout is None else dict.fromkeys(shares, dropout)),
    )
    # Transformers 5 keeps the dtype of the file; weights and their updates are float32 here.
    # It comes in evaluation mode, in which Lightning would leave it, so without dropout.
    return model.float().train()


def _has_head(config: BertConfig) -> bool:
    """Returns whether a published model was fine-tuned to classify sequences."""
    return any("SequenceClassification" in name for name in config.architectures or ())


def _additive_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns 0 where attention is allowed, [B, 1, 1, T], by [B, T] of 1 and 0 for padding."""
    # The lowest bfloat16 is finite in float32 as well; float32's own would become -inf in autocast.
    lowest = torch.finfo(torch.bfloat16).min
    return (1 - attention_mask[:, None, None, :]).to(dtype) * lowest
