"""Has the LightningModule: BERT on packed rows, its losses, optimizer and schedule.

Shapes: B rows, T tokens, D hidden, P predictions in a row, K sequences in a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertForPreTraining

from lightning_gaudi.data import block_diagonal_mask
from lightning_gaudi.untrusted import printable
from recipes.bert_pretraining.fill_mask import FilledMask, candidates, line, lines
from recipes.bert_pretraining.initialization import look_at_one_segment
from recipes.bert_pretraining.phases import PHASE1_KEY, Phase1
from recipes.bert_pretraining.sequences import IS_RANDOM
from recipes.bert_pretraining.unigram import UnigramReference
from recipes.common.errors import UserError
from recipes.common.folders import prediction_path, write_predictions
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Section, section
from recipes.common.training import SPLITS, RecipeModule, enable_checkpointing, gather_tokens

_IGNORED = -100
_MLM_TOTALS = ("mlm_loss", "mlm_correct", "num_predictions")
_NSP_TOTALS = ("nsp_loss", "nsp_correct", "num_pairs", "num_random")


class BertPretraining(RecipeModule):
    """Trains masked-language modelling, with or without next-sentence prediction, on packed rows.

    Nothing in a training step waits for the device: losses stay there as tensors and are read
    once in `log_every_n_steps`.

    Args:
        vocab_size: number of token embeddings (V).
        max_seq_length: longest sequence (T).
        num_positions: position embeddings; None for T. A first phase on short sequences needs as
            many as the longest of a later phase.
        hidden_size: width (D).
        num_layers: number of encoder layers.
        num_heads: number of attention heads.
        intermediate_size: width of the feed-forward layers; None for 4 D.
        dropout: dropout of hidden states and of attention.
        initializer_range: standard deviation of the initial weights; 0.02 suits BERT-base, a
            narrow model learns sooner with more.
        initialization: bert; or segments: two heads begin by looking at one segment each, a head
            start for next-sentence prediction in runs of minutes (see `initialization.py`).
        next_sentence: add the loss of next-sentence prediction. Without it the pooler and its
            head are kept, untrained, so that the exported model has the usual form.
        gradient_checkpointing: recompute activations in the backward pass: less memory, about a
            third more computation.
        optimizer: auto (AdamW: the vendor's kernel on an HPU that has all of each weight, torch's
            elsewhere), adamw or lamb (torch's), fused_adamw or fused_lamb (the vendor's kernels
            for hpu; an error elsewhere).
        learning_rate: the learning rate at its peak.
        schedule: linear, cosine, polynomial (of the published LAMB runs) or constant.
        warmup_steps: steps of increase to the peak; below 1, a share of the run.
        weight_decay: weight decay of all weights but biases and layer norms.
        betas: decay of the optimizer's averages.
        epsilon: the optimizer's epsilon, which is added to the denominator of its step.
        max_grad_norm: for lamb and fused_lamb; the others take `trainer.gradient_clip_val`.
        phase1_checkpoint: makes this phase 2: weights and moments of the optimizer come from this
            file, schedule and steps begin anew (see `phases.py`). required: `fit` wants one. To go
            on with an interrupted phase 2, give that checkpoint as `--ckpt_path` as well.
        num_candidates: tokens that `predict` names for each masked one.

    Raises:
        UserError: for a model shorter than the sequences, and for a file that is no checkpoint of
            phase 1 of this model.
    """

    progress_loss = "mlm_loss"
    validation_loss = "val/mlm_loss"
    validation_score = "val/mlm_accuracy"

    def __init__(
        self,
        vocab_size: int = 2048,
        max_seq_length: int = 128,
        num_positions: int | None = None,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 2,
        intermediate_size: int | None = None,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        initialization: Literal["bert", "segments"] = "bert",
        next_sentence: bool = False,
        gradient_checkpointing: bool = False,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 5e-5,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = EPSILON,
        max_grad_norm: float | None = 1.0,
        phase1_checkpoint: str | None = None,
        num_candidates: int = 5,
    ) -> None:
        super().__init__()
        # The weights that a checkpoint holds do not come from phase 1 any more.
        self.save_hyperparameters(ignore="phase1_checkpoint")
        if num_positions is not None and num_positions < max_seq_length:
            raise UserError(
                f"model.num_positions={num_positions} is less than data.max_seq_length="
                f"{max_seq_length}: the last tokens would have no position. Set at least that."
            )
        config = BertConfig(
            vocab_size=vocab_size,
            max_position_embeddings=num_positions or max_seq_length,
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
        if initialization == "segments":
            look_at_one_segment(self.model.bert)
        if gradient_checkpointing:
            enable_checkpointing(self.model)
        if not next_sentence:  # otherwise DDP would wait for gradients that never come
            self.model.bert.pooler.requires_grad_(False)
            self.model.cls.seq_relationship.requires_grad_(False)
        self._filled: list[tuple[int, str]] = []
        self._phase1 = Phase1.of(phase1_checkpoint, self)

    def setup(self, stage: str) -> None:
        """Begins phase 2 with the weights of phase 1."""
        if stage == "fit" and self._phase1 is not None:
            self._phase1.load_weights(self)

    def configure_optimizers(self) -> Any:
        """Returns the optimizer and its schedule; in phase 2 with the moments of phase 1."""
        configured = super().configure_optimizers()
        if self._phase1 is not None:
            self._phase1.load_moments(configured["optimizer"])
        return configured

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the number of the phase."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[PHASE1_KEY] = None if self._phase1 is None else self._phase1.path

    def logits(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Predicts the masked tokens, and whether the segments of each sequence belong together.

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
        token_logits = heads.predictions(gather_tokens(hidden, batch["masked_positions"]))
        if not self.hparams["next_sentence"]:
            return token_logits, None
        first = gather_tokens(hidden, batch["cls_positions"])
        # The pooler takes the first token of a row, so it gets each [CLS] as a row of one token.
        pooled = bert.pooler(first.flatten(0, 1).unsqueeze(1)).unflatten(0, first.shape[:2])
        return token_logits, heads.seq_relationship(pooled)

    def forward(
        self, batch: Mapping[str, Tensor], scores: bool = False
    ) -> dict[str, Tensor] | Tensor:
        """Returns the losses; for scores the sums that they are made of, float32, in one tensor."""
        token_logits, pair_logits = self.logits(batch)
        if not scores:
            return self._losses(batch, token_logits, pair_logits)
        sums = _sums(token_logits, batch["masked_labels"])
        if pair_logits is not None:
            labels = batch["next_sentence_labels"]
            sums += (*_sums(pair_logits, labels), (labels == IS_RANDOM).sum().float())
        return torch.stack(sums)

    def _losses(
        self, batch: Mapping[str, Tensor], token_logits: Tensor, pair_logits: Tensor | None
    ) -> dict[str, Tensor]:
        """Divides the sum of the losses by how many a batch has on average, which is a constant.

        So every prediction weighs the same, in whatever micro-batch or on whatever card it is, and
        gradient accumulation gives the gradient of the whole batch. (The mean over each batch would
        give more weight to predictions that have fewer beside them.) Logged is the mean.
        """
        sums = {"mlm": (*_sum_loss(token_logits, batch["masked_labels"]), "expected_predictions")}
        if pair_logits is not None:
            labels = batch["next_sentence_labels"]
            sums["nsp"] = (*_sum_loss(pair_logits, labels), "expected_pairs")
        loss = reduce(torch.add, (total / batch[name] for total, _, name in sums.values()))
        means = {
            f"{name}_loss": (total / count.clamp(min=1)).detach()
            for name, (total, count, _) in sums.items()
        }
        return {"loss": loss, **means}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        return self(batch)  # type: ignore[no-any-return]

    @property
    def num_totals(self) -> int:
        """The number of sums, with those of next-sentence prediction if it is trained."""
        return len(self._names_of_totals())

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[FilledMask]:
        """Returns the likeliest tokens in each masked place, in the order of the text."""
        token_logits, _ = self.logits(batch)
        best = token_logits.float().softmax(dim=-1).topk(self.hparams["num_candidates"])
        tokenizer = self.trainer.datamodule.tokenizer  # type: ignore[attr-defined]
        return candidates(batch, best.values, best.indices, tokenizer)

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Prints them; `trainer.predict` returns them too."""
        print(
            f"\n{printable(lines(outputs), lines=True)}", flush=True
        )  # so that it does not follow the progress bar in its line
        size, ranks, rank = len(batch["is_real"]), self.trainer.world_size, self.trainer.global_rank
        most = batch["masked_positions"].shape[1]
        for row, masks in groupby(outputs, key=lambda mask: mask.row):
            first = ((batch_idx * size + row) * ranks + rank) * most  # the ranks take turns
            self._filled.extend(enumerate(map(line, masks), start=first))

    def on_predict_epoch_start(self) -> None:
        self._filled = []

    def on_predict_epoch_end(self) -> None:
        """Writes what was printed to one file, in the order of the text."""
        path = prediction_path(self.trainer, "filled_masks.txt")
        write_predictions(self.trainer, path, self._filled)

    def report_sections(self, stage: str) -> list[Section]:
        """Returns the loss by word frequency alone; a lower one was learnt from context."""
        loss = self.trainer.callback_metrics.get(f"{stage}/mlm_loss")
        if loss is None:
            return []
        reference = self._unigram_reference(stage)
        margin = reference.strictest - float(loss)
        rows = [
            ("model", f"{float(loss):.3f} nats"),
            ("unigram entropy, same text", f"{reference.text_entropy:.3f} nats"),
            ("... on the masked tokens only", f"{reference.target_cross_entropy:.3f} nats"),
            ("margin below the lower of both", f"{margin:.3f} nats"),
        ]
        return [section(f"Masked-language-modelling loss ({SPLITS[stage]})", rows)]

    def references(self, name: str) -> dict[str, float]:
        """Returns the losses by word frequency alone."""
        if name != "loss" or self.validation_loss not in self.trainer.callback_metrics:
            return {}
        return {"word frequency alone": self._unigram_reference("val").strictest}

    def _unigram_reference(self, stage: str) -> UnigramReference:
        return self.trainer.datamodule.unigram_reference(SPLITS[stage])  # type: ignore[attr-defined]

    def _names_of_totals(self) -> tuple[str, ...]:
        return _MLM_TOTALS + (_NSP_TOTALS if self.hparams["next_sentence"] else ())

    def log_evaluation(self, stage: str) -> None:
        """Reads the sums of all processes at once, and logs means that live on the host."""
        sums = dict(zip(self._names_of_totals(), self.read_totals(), strict=True))
        count = max(sums["num_predictions"], 1.0)
        self.log_on_host({f"{stage}/mlm_loss": sums["mlm_loss"] / count}, prog_bar=True)
        values = {"mlm_accuracy": sums["mlm_correct"] / count}
        if self.hparams["next_sentence"]:
            count = max(sums["num_pairs"], 1.0)
            share = sums["num_random"] / count
            values["nsp_loss"] = sums["nsp_loss"] / count
            values["nsp_accuracy"] = sums["nsp_correct"] / count
            # The accuracy to beat is that of always the same answer.
            values["nsp_majority"] = max(share, 1 - share)
        self.log_on_host({f"{stage}/{name}": value for name, value in values.items()})


def _sum_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum of the cross-entropies of all labels but -100, and their number."""
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
    )
    return loss, (labels != _IGNORED).sum()


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums of losses, right predictions and predictions; all float32."""
    loss, count = _sum_loss(logits, labels)
    return loss, (logits.argmax(-1) == labels).sum().float(), count.float()
