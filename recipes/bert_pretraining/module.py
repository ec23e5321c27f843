"""The LightningModule: BERT with packed rows, its losses, optimizer and schedule.

Shapes: B rows, T tokens, D hidden, P predictions in a row, K sequences in a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertForPreTraining

from lightning_gaudi.data import block_diagonal_mask

_IGNORED = -100
_ADAM_EPSILON = 1e-6  # BERT's, and the vendor's default; torch's is 1e-8
_TOTALS = ("mlm_loss", "mlm_correct", "num_predictions", "nsp_loss", "nsp_correct", "num_pairs")


class BertPretraining(LightningModule):
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
        optimizer: adamw (torch) or fused_adamw (the vendor's kernel for hpu; an error elsewhere).
        learning_rate: at its peak.
        warmup_steps: steps of linear increase to the peak; from there it decreases linearly to
            zero at the last step.
        weight_decay: of all weights but biases and layer norms.
        betas: of AdamW.
    """

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
        optimizer: Literal["adamw", "fused_adamw"] = "adamw",
        learning_rate: float = 5e-5,
        warmup_steps: int = 0,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
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
            _enable_checkpointing(self.model)
        if not next_sentence:  # DDP must not wait for gradients that never come
            self.model.bert.pooler.requires_grad_(False)
            self.model.cls.seq_relationship.requires_grad_(False)
        self._totals: Tensor | None = None
        self._logged_step = 0

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

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the losses, in log steps only: it waits for the device.

        `self.log` in every step would cost the host 0.3 ms, and copy on the device, where it makes
        one more graph to compile.
        """
        every = self.trainer.log_every_n_steps
        if self.global_step == self._logged_step or not every or self.global_step % every:
            return
        self._logged_step = self.global_step
        optimizer = self.optimizers(use_pl_optimizer=False)
        losses = {name: value for name, value in outputs.items() if name.endswith("_loss")}
        values = {f"train/{name}": float(loss.cpu()) for name, loss in losses.items()}
        values["train/learning_rate"] = optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
        for logger in self.trainer.loggers:
            logger.log_metrics(values, self.global_step - 1)
        self.trainer.progress_bar_metrics["mlm_loss"] = values["train/mlm_loss"]

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

    def configure_optimizers(self) -> Any:
        """AdamW with linear warm-up and decay."""
        optimizer = self._optimizer_class()(
            self._parameter_groups(),
            lr=self.hparams["learning_rate"],
            betas=tuple(self.hparams["betas"]),
            eps=_ADAM_EPSILON,
        )
        schedule = self._schedule(optimizer, self.trainer.estimated_stepping_batches)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Weights, which decay, and biases and layer norms, which do not."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        decay = self.hparams["weight_decay"]
        return [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]

    def _schedule(
        self, optimizer: torch.optim.Optimizer, num_steps: float
    ) -> torch.optim.lr_scheduler.LambdaLR:
        num_warmup = self.hparams["warmup_steps"]

        def scale(step: int) -> float:
            if step < num_warmup:
                return (step + 1) / num_warmup
            return max(0.0, (num_steps - step) / max(1, num_steps - num_warmup))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, scale)

    def _optimizer_class(self) -> type[torch.optim.Optimizer]:
        if self.hparams["optimizer"] == "adamw":
            return torch.optim.AdamW
        if self.device.type != "hpu":
            raise ValueError(
                f"model.optimizer=fused_adamw is the vendor's kernel for hpu, but the model is on "
                f"{self.device.type}. Use model.optimizer=adamw, or trainer.accelerator=hpu."
            )
        from lightning_gaudi import vendor

        return vendor.fused_adamw()

    def _log_totals(self, stage: str) -> None:
        """Read the sums of all processes at once, and log means that live on the host."""
        assert self._totals is not None
        sums = self.trainer.strategy.reduce(self._totals, reduce_op="sum")
        totals = dict(zip(_TOTALS, sums.tolist(), strict=False))
        pairs = [("mlm", max(totals["num_predictions"], 1.0))]
        if self.hparams["next_sentence"]:
            pairs.append(("nsp", max(totals["num_pairs"], 1.0)))
        for name, count in pairs:
            loss, correct = totals[f"{name}_loss"] / count, totals[f"{name}_correct"] / count
            # A tensor on the host stays there; a number would become a tensor on the device.
            self.log(f"{stage}/{name}_loss", torch.tensor(loss), prog_bar=name == "mlm")
            self.log(f"{stage}/{name}_accuracy", torch.tensor(correct))
        self._totals = None


def _enable_checkpointing(model: BertForPreTraining) -> None:
    """Under the name it has: transformers 5.23 deprecates the one that 4 and 5.0 know."""
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})


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
