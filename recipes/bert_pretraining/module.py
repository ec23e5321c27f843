"""The LightningModule: BERT with packed rows, its losses, optimizer and schedule.

Shapes: B rows, T tokens, D hidden, P predictions in a row, K sequences in a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertForPreTraining

from lightning_gaudi.data import block_diagonal_mask
from recipes.common.optimizers import OptimizerName, Schedule
from recipes.common.training import RecipeModule, enable_checkpointing

_IGNORED = -100
_TOTALS = ("mlm_loss", "mlm_correct", "num_predictions", "nsp_loss", "nsp_correct", "num_pairs")


class BertPretraining(RecipeModule):
    """Masked-language modelling, with or without next-sentence prediction, on packed rows.

    Nothing in a training step waits for the device: losses stay there as tensors and are read
    once in `log_every_n_steps`.

    Args:
        vocab_size: number of token embeddings (V).
        max_seq_length: longest sequence, so number of position embeddings (T).
        hidden_size: width (D).
        num_layers: number of encoder layers.
        num_heads: number of attention heads.
        intermediate_size: width of the feed-forward layers; None for 4 D.
        dropout: of hidden states and of attention.
        initializer_range: standard deviation of the initial weights; 0.02 suits BERT-base, a
            narrow model learns sooner with more.
        next_sentence: add the loss of next-sentence prediction. Without it the pooler and its
            head are kept, untrained, so that the exported model has the usual form.
        gradient_checkpointing: recompute activations in the backward pass: less memory, about a
            third more computation.
        optimizer: adamw or lamb (torch), fused_adamw or fused_lamb (the vendor's kernels for hpu;
            an error elsewhere).
        learning_rate: at its peak.
        schedule: linear, polynomial (of the published LAMB runs) or constant.
        warmup_steps: of increase to the peak; below 1: a share of the run.
        weight_decay: of all weights but biases and layer norms.
        betas: decay of the optimizer's averages.
        max_grad_norm: of lamb and fused_lamb; the others take `trainer.gradient_clip_val`.
    """

    progress_loss = "mlm_loss"

    def __init__(
        self,
        vocab_size: int = 2048,
        max_seq_length: int = 128,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 2,
        intermediate_size: int | None = None,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        next_sentence: bool = False,
        gradient_checkpointing: bool = False,
        optimizer: OptimizerName = "adamw",
        learning_rate: float = 5e-5,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float | None = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        config = BertConfig(
            vocab_size=vocab_size,
            max_position_embeddings=max_seq_length,
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=intermediate_size or 4 * hidden_size,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            initializer_range=initializer_range,
            attn_implementation="sdpa",
        )
        self.model = BertForPreTraining(config)
        if gradient_checkpointing:
            enable_checkpointing(self.model)
        if not next_sentence:  # DDP must not wait for gradients that never come
            self.model.bert.pooler.requires_grad_(False)
            self.model.cls.seq_relationship.requires_grad_(False)
        self._totals: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Predict the masked tokens, and whether the segments of each sequence belong together.

        Returns:
            [B, P, V] logits, and [B, K, 2] logits or None without next-sentence prediction.
        """
        bert, heads = self.model.bert, self.model.cls
        embedded = bert.embeddings(
            input_ids=batch["input_ids"],
            token_type_ids=batch["token_type_ids"],
            position_ids=batch["position_ids"],
        )
        # The encoder takes a ready additive mask on every transformers version. BertModel.forward
        # reads 3D masks on some and 4D ones on others, and waits for the device over 2D ones.
        mask = block_diagonal_mask(batch["sequence_ids"], embedded.dtype)
        hidden = bert.encoder(embedded, attention_mask=mask)[0]
        token_logits = heads.predictions(_gather(hidden, batch["masked_positions"]))
        if not self.hparams["next_sentence"]:
            return token_logits, None
        first = _gather(hidden, batch["cls_positions"])
        # The pooler looks at the first token of a row: give it each [CLS] as a row of one token.
        pooled = bert.pooler(first.flatten(0, 1).unsqueeze(1)).unflatten(0, first.shape[:2])
        return token_logits, heads.seq_relationship(pooled)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        token_logits, pair_logits = self(batch)
        losses = {"mlm_loss": _mean_loss(token_logits, batch["masked_labels"])}
        if pair_logits is not None:
            losses["nsp_loss"] = _mean_loss(pair_logits, batch["next_sentence_labels"])
        detached = {name: loss.detach() for name, loss in losses.items()}
        return {"loss": reduce(torch.add, losses.values()), **detached}

    def on_validation_epoch_start(self) -> None:
        size = len(_TOTALS) if self.hparams["next_sentence"] else len(_TOTALS) // 2
        self._totals = torch.zeros(size, device=self.device)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add up sums, not means: the last batch may hold fewer predictions."""
        token_logits, pair_logits = self(batch)
        sums = _sums(token_logits, batch["masked_labels"])
        if pair_logits is not None:
            sums += _sums(pair_logits, batch["next_sentence_labels"])
        assert self._totals is not None
        self._totals += torch.stack(sums)

    def on_validation_epoch_end(self) -> None:
        self._log_totals("val")

    def on_test_epoch_start(self) -> None:
        self.on_validation_epoch_start()

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        self._log_totals("test")

    def _log_totals(self, stage: str) -> None:
        """Read the sums of all processes at once, and log means that live on the host."""
        assert self._totals is not None
        totals = dict(zip(_TOTALS, self.sum_over_ranks(self._totals), strict=False))
        pairs = [("mlm", max(totals["num_predictions"], 1.0))]
        if self.hparams["next_sentence"]:
            pairs.append(("nsp", max(totals["num_pairs"], 1.0)))
        for name, count in pairs:
            for kind in ("loss", "accuracy"):
                total = totals[f"{name}_loss" if kind == "loss" else f"{name}_correct"]
                metric = f"{stage}/{name}_{kind}"
                self.log_on_host({metric: total / count}, prog_bar=metric.endswith("mlm_loss"))
        self._totals = None


def _gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """Select tokens: [B, T, D] at [B, N] gives [B, N, D]."""
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over the labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED)


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of losses, number of right predictions, number of predictions; all float32."""
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
    )
    correct = (logits.argmax(-1) == labels).sum()
    return loss, correct.float(), (labels != _IGNORED).sum().float()
