"""Has the LightningModule, which fine-tunes a language model, and writes answers with it.

Shapes: B rows, T tokens of a row, D hidden, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from lightning_gaudi.data import block_diagonal_mask
from lightning_gaudi.inference import Engine, card_memory_bytes
from lightning_gaudi.untrusted import printable
from recipes.common.errors import UserError, first_line
from recipes.common.folders import prediction_path, write_predictions
from recipes.common.hub import load_pretrained
from recipes.common.optimizers import EPSILON, OptimizerName, Schedule
from recipes.common.sections import Row, Section, section, table
from recipes.common.tokenization import check_vocabulary, load_tokenizer, published_tokenizer
from recipes.common.training import SPLITS, RecipeModule, enable_checkpointing
from recipes.common.writing import Writer, WritingSettings, continuation
from recipes.llm_finetuning.adapters import (
    ALL_LINEAR,
    BASE_KEY,
    adapter_state,
    add_lora,
    base_fingerprint,
    check_base,
    merge,
    whole_weights,
    without_adapters,
)
from recipes.llm_finetuning.attention import attend_over_cards, attend_without_mask, check_mask
from recipes.llm_finetuning.data import LlmData
from recipes.llm_finetuning.isolation import check_isolation
from recipes.llm_finetuning.losses import (
    answer_log_probabilities,
    chunked_cross_entropy,
    preference_loss,
)
from recipes.llm_finetuning.quantization import (
    check_quantization,
    four_bit_options,
    keep_gradients,
    refuse_fp8,
    refuse_shards,
)
from recipes.llm_finetuning.sharding import ULYSSES, shard, takes_from_first

_FILE = "answers.jsonl"
_SHOWN = 4
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_WRITING = tuple(WritingSettings.__dataclass_fields__)
_INDIFFERENT = math.log(2)
"""The loss of preferences of a model that prefers nothing more than its base does."""
_FEW_LAYERS = 8
"""A model with more layers is compiled block by block, see `compile_regions`."""


class LlmFinetuning(RecipeModule):
    """Trains a decoder-only model of transformers, or a new small Llama.

    Nothing in a training step waits for the device, and all rows have one shape. The loss is the
    sum over the tokens that are learnt, divided by the same number in every batch (`mean_learnt`,
    their average number in a batch). So each token has the same weight, and gradients that are
    accumulated or averaged over cards are exactly those of one large batch. The logged
    `answer_loss` is the mean over the tokens of its batch.

    Args:
        name: name of a published model (meta-llama/Llama-3.1-8B, ...), or a folder that
            `save_pretrained` or `export` wrote; None makes a new model of the following sizes.
        vocab_size: number of token embeddings (V).
        hidden_size: width (D).
        intermediate_size: width of the feed-forward layers; None for 8/3 of the width.
        num_layers: number of blocks.
        num_heads: number of attention heads.
        initializer_range: standard deviation of the initial weights of a new model.
        attention: transformers' `attn_implementation`: eager, sdpa or gaudi_fused_sdpa (the
            vendor's kernel); None for transformers' default.
        sequence_parallel: how the cards of `tensor_parallel_size` share the tokens of a row. tensor
            divides layers among them, and between layers the tokens; ulysses divides the tokens,
            and in attention the heads, and each card computes all layers; None divides layers, and
            each card has all tokens.
        tokenizer: name or folder of the tokenizer, which is checked against the model.
        method: full (all weights), lora (adapters beside frozen weights) or qlora (adapters beside
            frozen weights in four bits, NF4).
        double_quantization: whether qlora quantizes the scales of the weights, too.
        lora_rank: rank of the adapters.
        lora_alpha: the output of the adapters is multiplied by lora_alpha / lora_rank.
        lora_dropout: dropout of the input of the adapters.
        lora_targets: all-linear, or names of layers, such as [q_proj, v_proj].
        dpo_beta: for data.objective=dpo; a smaller one lets the model go further from its base.
        dtype: dtype of the weights, fp32 or bf16. Trained weights are fp32; bf16 is for the frozen
            weights of lora, for those of qlora that are not in four bits, for `predict`, and for
            trainer.precision=bf16-true.
        gradient_checkpointing: recomputes each block in the backward pass, which takes a fraction
            of the memory, and a third more time.
        loss_chunks: parts of a batch's tokens. Only one part has its logits at a time, and they are
            computed again in backward. 1 computes all at once.
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
        max_new_tokens: the largest number of tokens of an answer of `predict`.
        temperature: 0 takes the likeliest token each time; otherwise tokens are drawn.
        top_k: draws among the k likeliest tokens only; None draws among all.
        top_p: draws among the likeliest tokens that together have this probability; None draws
            among all.
        sampling_seed: seed of the draws; prompt number i draws with this plus i, in any batch.
        engine: how a token's step is run: auto, graph (HPU graphs; lazy mode), compile (eager
            mode) or none.
        check_end_every: after how many tokens the host asks the device whether all answers of the
            batch have ended; None never asks, so nothing waits.
        stop_at_end: ends an answer at the end-of-sequence token; False writes on.
        num_warmup: generations of each shape before those that are measured.
        predictions: the file that `predict` writes, with one JSON object a line; None writes
            answers.jsonl in the folder of the checkpoint's run.

    Raises:
        UserError: The model cannot be read, is no decoder or does not suit the tokenizer, or
            settings contradict each other.
    """

    progress_loss = "answer_loss"
    validation_score = "val/perplexity"

    def __init__(
        self,
        name: str | None = None,
        vocab_size: int = 1024,
        hidden_size: int = 128,
        intermediate_size: int | None = None,
        num_layers: int = 2,
        num_heads: int = 4,
        initializer_range: float = 0.02,
        attention: str | None = None,
        sequence_parallel: Literal["tensor", "ulysses"] | None = None,
        tokenizer: str | None = None,
        method: Literal["full", "lora", "qlora"] = "full",
        double_quantization: bool = True,
        lora_rank: int = 16,
        lora_alpha: float = 32.0,
        lora_dropout: float = 0.0,
        lora_targets: str | Sequence[str] = ALL_LINEAR,
        dpo_beta: float = 0.1,
        dtype: Literal["fp32", "bf16"] = "fp32",
        gradient_checkpointing: bool = False,
        loss_chunks: int = 16,
        optimizer: OptimizerName = "auto",
        learning_rate: float = 3e-3,
        schedule: Schedule = "linear",
        warmup_steps: float = 0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = EPSILON,
        max_grad_norm: float | None = 1.0,
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
        self.save_hyperparameters(ignore=[*_WRITING, "predictions"])
        self._predictions = predictions
        if loss_chunks < 1:
            raise UserError(f"model.loss_chunks={loss_chunks} must be at least 1.")
        if method != "full" and not name:
            raise UserError(
                f"model.method={method} trains adapters of a published model, and model.name is "
                "not set. Set it, or model.method=full."
            )
        if name:
            self._check(name)
        else:
            self.model = self._prepared(self._from_nothing())
        self._base = ""
        # It is drawn here, where all ranks still have the same random state.
        self._adapter_seed = int(torch.randint(2**31, ()))
        # A checkpoint of lora has only the adapters, which `on_load_checkpoint` checks.
        self.strict_loading = method == "full"
        self._writer: Writer | None = None
        self._sequence: DeviceMesh | None = None
        """The cards that share the tokens of rows, under Ulysses."""
        self._is_causal, self._attention = False, ""
        """Whether rows need no mask, and the attention function that the model came with."""
        self._is_configured = False
        self._shape: tuple[int, ...] = (0, 0)
        """The shape [B, T] of the last training batch."""
        self._num_multiplied = (0.0, 0.0)
        """What `_count_multiplied` returned at the start of the fit."""

    @property
    def _has_adapters(self) -> bool:
        return bool(self.hparams["method"] != "full")

    @property
    def compile_regions(self) -> tuple[str, ...]:
        """`forward` as a whole, or blocks of a deep model, which would take long to compile."""
        is_deep = self.model.config.get_text_config().num_hidden_layers > _FEW_LAYERS
        return () if is_deep else super().compile_regions

    def configure_model(self) -> None:
        """Loads a published model, and divides it among cards under `ModelParallelStrategy`.

        Under ZeRO-3 each weight is partitioned as it is loaded, so that neither a card nor a host
        ever holds all weights. Under FSDP2 the first rank reads the model and sends the others
        their parts.
        """
        if not self._is_configured:
            if self.hparams["name"]:
                self.model = self._prepared(self._pretrained())
            self._attention = self.model.config._attn_implementation
            if self.device_mesh is not None:
                sequence = self.hparams["sequence_parallel"]
                self._sequence = shard(self, self.model, self.device_mesh, sequence)
                self._base = self.trainer.strategy.broadcast(self._base)
            self._is_configured = True
        if self._trainer is not None:
            self._prepare_rows()

    def setup(self, stage: str) -> None:
        """Refuses settings that cannot be trained with, before the training starts."""
        if stage != "fit":
            return
        is_low = self.hparams["dtype"] != "fp32" and self.trainer.precision != "bf16-true"
        if is_low and self.hparams["method"] == "full":
            raise UserError(
                "model.dtype=bf16 is for frozen weights, and trained weights are kept in fp32. Set "
                "model.dtype=fp32 and trainer.precision=bf16-mixed, or model.method=lora. "
                "trainer.precision=bf16-true trains all in bfloat16, and loses small updates."
            )
        if self.hparams["method"] == "qlora":
            refuse_shards(self.trainer.strategy)
            refuse_fp8(self.trainer.precision_plugin)
        is_dpo = self.data_of(LlmData, "rows").hparams["objective"] == "dpo"
        if is_dpo and not self._has_adapters:
            raise UserError(
                "data.objective=dpo compares with the model as it was before the training, which "
                "is kept only beside adapters. Set model.method=lora, and model.name to the model."
            )
        sequence, mesh = self.hparams["sequence_parallel"], self.device_mesh
        if sequence and (mesh is None or mesh["tensor_parallel"].size() == 1):
            raise UserError(
                f"model.sequence_parallel={sequence} is for cards that share rows, and here no "
                "cards do. Set trainer.strategy to ModelParallelStrategy, and its "
                "tensor_parallel_size to their number, or leave model.sequence_parallel out."
            )
        if is_dpo and sequence == ULYSSES:
            raise UserError(
                "model.sequence_parallel=ulysses gives cards parts of an answer, and "
                "data.objective=dpo compares whole ones. Leave model.sequence_parallel out, or set "
                "it to tensor."
            )
        strategy = self.trainer.strategy
        if isinstance(strategy, DeepSpeedStrategy) and self._has_adapters:
            strategy.exclude_frozen_parameters = True

    def on_fit_start(self) -> None:
        """Checks that the model keeps the documents of a packed row apart."""
        self._num_multiplied = self._count_multiplied()
        if not self._data().are_rows_shared:
            return
        was_training = self.training
        self.eval()
        vocab_size = self.model.config.get_text_config().vocab_size
        name = f"model.name={self.hparams['name'] or 'null'}"
        check_isolation(self.packed_logits, vocab_size, self.device, name)
        self.train(was_training)

    def hidden(self, tokens: Tensor, sequence_ids: Tensor, positions: Tensor) -> Tensor:
        """Returns the last hidden states.

        Args:
            tokens: the tokens of packed rows, int64 [B, T].
            sequence_ids: the number of each token's document in its row, int64 [B, T]; 0 for
                padding.
            positions: the position of each token in its document, int64 [B, T], from 0.

        Returns:
            The states [B, T, D]; if cards share rows, those of this card's tokens.
        """
        mask = None if self._is_causal else self._mask(sequence_ids)
        # With a cache, or a mask of fewer dimensions, some models let documents see each other.
        found = self.model.get_decoder()(
            input_ids=self._own(tokens),
            attention_mask=mask,
            position_ids=self._own(positions),
            use_cache=False,
        )
        hidden: Tensor = found.last_hidden_state
        return hidden

    def _mask(self, sequence_ids: Tensor) -> Tensor:
        """Returns a mask [B, 1, T, T], by which a token sees its document up to itself."""
        ids = torch.arange(sequence_ids.shape[1], device=sequence_ids.device)
        mask = block_diagonal_mask(sequence_ids, self._compute_dtype())
        future = ids[None, :] > ids[:, None]
        # float32 can represent the smallest bfloat16, too, so one value serves both dtypes.
        return mask.masked_fill(future, torch.finfo(torch.bfloat16).min)

    def _own(self, of_tokens: Tensor) -> Tensor:
        """Returns this card's part of numbers [B, T], if cards share the tokens of rows."""
        if self._sequence is None:
            return of_tokens
        return of_tokens.chunk(self._sequence.size(), 1)[self._sequence.get_local_rank()]

    def forward(self, batch: Mapping[str, Any], scores: bool = False) -> Any:
        """Returns the losses; for scores the summed loss and the number of tokens, float32 [2]."""
        hidden = self.hidden(batch["input_ids"], batch["sequence_ids"], batch["position_ids"])
        if "max_documents" in batch:
            return self._preferences(batch, hidden, scores)
        labels = self._own(batch["labels"]).flatten()
        num_chunks = self.hparams["loss_chunks"]
        total = chunked_cross_entropy(hidden.flatten(0, 1), labels, self._head, num_chunks)
        if scores:
            return torch.stack((total, (labels >= 0).sum().float()))
        num_learnt = (batch["labels"] >= 0).sum().float()
        # FSDP2 averages the gradients of cards that share rows, which ought to be summed: so the
        # loss is larger by their number. It is put in the divisor, because under autocast a Gaudi
        # would multiply in bfloat16.
        num_parts = 1 if self._sequence is None else self._sequence.size()
        return {
            "loss": total / (batch["mean_learnt"] / num_parts),
            "answer_loss": self._of_whole_rows(total.detach()) / num_learnt.clamp(min=1.0),
        }

    def _of_whole_rows(self, total: Tensor) -> Tensor:
        """Returns the sum of a number over the cards that share rows."""
        if self._sequence is None:
            return total
        return DTensor.from_local(total, self._sequence, [Partial()]).full_tensor()

    def _preferences(self, batch: Mapping[str, Any], hidden: Tensor, scores: bool) -> Any:
        """Returns the losses of preferences; for scores [3] with the pairs ranked right last."""
        policy = self._answers(batch, hidden)
        with torch.no_grad(), without_adapters(self.model):
            rows = (batch["input_ids"], batch["sequence_ids"], batch["position_ids"])
            reference = self._answers(batch, self.hidden(*rows))
        loss, num_right, num_pairs = preference_loss(
            policy, reference, batch["sequence_ids"], self.hparams["dpo_beta"]
        )
        if scores:
            return torch.stack((loss, num_pairs, num_right))
        return {
            "loss": loss / batch["mean_learnt"],
            "answer_loss": loss.detach() / num_pairs.clamp(min=1.0),
        }

    def _answers(self, batch: Mapping[str, Any], hidden: Tensor) -> Tensor:
        """Returns the log-probability of each answer, [B, K]."""
        return answer_log_probabilities(
            hidden,
            batch["labels"],
            batch["sequence_ids"],
            self._head,
            self.hparams["loss_chunks"],
            int(batch["max_documents"]),
        )

    @property
    def flops_per_batch(self) -> int:
        """Floating-point operations of the last batch, forward and backward, for the MFU.

        Only matrix products are counted, for all places of a row including padding, and without
        what checkpointing computes again.
        """
        config = self.model.config.get_text_config()
        num_rows, length = self._shape
        num_tokens = num_rows * length
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        attention = 4 * num_tokens * length * width * config.num_hidden_layers
        trained, frozen = self._num_multiplied
        # A product takes 2 operations in forward, 2 for the gradient of its input, and 2 for that
        # of its weight, which a frozen one does not have.
        found = num_tokens * (6 * trained + 4 * frozen) + 3 * attention
        if self._data().hparams["objective"] == "dpo":  # the base computes forward, too
            found += 2 * num_tokens * frozen + attention
        return int(found)

    def _count_multiplied(self) -> tuple[float, float]:
        """Returns how many elements of matrices a token is multiplied by: trained, and frozen."""
        config = self.model.config.get_text_config()
        embeddings = self.model.get_input_embeddings().weight
        is_tied = embeddings is self.model.get_output_embeddings().weight
        found = {True: 0.0, False: 0.0}
        for weight in self.model.parameters():
            # ZeRO-3 keeps a weight's shape in `ds_shape`; bitsandbytes packs four bits as bytes.
            stored = getattr(weight, "quant_state", None) or weight
            shape = getattr(weight, "ds_shape", stored.shape)
            share, num_met = 1.0, getattr(config, "num_experts_per_tok", None)
            if len(shape) == 3 and num_met:  # stacked experts, some of which compute a token
                share = num_met / shape[0]
            # Embeddings are looked up, not multiplied, unless they are the output layer, too.
            if len(shape) > 1 and (is_tied or weight is not embeddings):
                found[weight.requires_grad] += share * math.prod(shape)
        return found[True], found[False]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        self._shape = tuple(batch["input_ids"].shape)
        return self(batch)  # type: ignore[no-any-return]

    @property
    def num_totals(self) -> int:
        """The number of sums: loss and tokens; or loss, pairs, and pairs ranked right."""
        return 3 if self._data().hparams["objective"] == "dpo" else 2

    def on_predict_start(self) -> None:
        """Merges adapters into the weights beside them, and prepares the writing of answers."""
        if isinstance(self.trainer.strategy, ModelParallelStrategy | DeepSpeedStrategy):
            raise UserError(
                f"trainer.strategy is {type(self.trainer.strategy).__name__}, which divides "
                "weights among cards, but only a card that has them all can write an answer. Leave "
                "trainer.strategy out."
            )
        data = self._data()
        # With qlora adapters stay apart: merged weights would be rounded to four bits again.
        if self.hparams["method"] == "lora":
            merge(self.model)
        buckets = data.hparams["prompt_buckets"]
        self._writer = Writer(self.model, self.writing, data.get_tokenizer(), buckets)
        self._writer.check(data.read_prompts(), can_cut=False)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[int]:
        """Returns the numbers of the batch's prompts; answers are written at the epoch's end."""
        assert self._writer is not None
        return self._writer.write(batch)

    def on_predict_epoch_end(self) -> None:
        """Writes the answers of all cards to one file, in the order of the prompts."""
        assert self._writer is not None
        data, tokenizer = self._data(), self._data().get_tokenizer()
        prompts, asked, lines = data.read_prompts(), data.asked(), []
        for index, tokens in self._writer.read().items():
            text = continuation(tokenizer, prompts[index].tokens, tokens)
            row = {
                "index": index,
                "messages": [each._asdict() for each in asked[index].question],
                "answer": text,
            }
            if reference := asked[index].answer:
                is_exact = text.strip() == reference.strip()
                row |= {"reference": reference, "task": asked[index].task, "is_exact": is_exact}
            lines.append((index, json.dumps(row, ensure_ascii=False)))
        path = prediction_path(self.trainer, _FILE, self._predictions)
        write_predictions(self.trainer, path, lines)
        self._print(path)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leaves out frozen weights, and adds their fingerprint."""
        super().on_save_checkpoint(checkpoint)
        if not self._has_adapters:
            return
        checkpoint[BASE_KEY] = self._base
        if checkpoint.get("state_dict"):
            checkpoint["state_dict"] = adapter_state(checkpoint["state_dict"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the weights of another model, and adapters of another base.

        Raises:
            UserError: The checkpoint does not belong to the configured model.
        """
        if not self._has_adapters:
            super().on_load_checkpoint(checkpoint)
            return
        check_base(checkpoint, self._base, self.hparams["name"])
        if not (theirs := checkpoint.get("state_dict")):
            return  # the strategy loads sharded weights by itself, and compares them
        ours = adapter_state(self.state_dict(keep_vars=True))
        # A weight that ZeRO-3 has partitioned is empty here, and has its shape in `ds_shape`.
        shapes = {name: getattr(each, "ds_shape", each.shape) for name, each in ours.items()}
        if shapes != {name: each.shape for name, each in adapter_state(theirs).items()}:
            raise UserError(
                "The checkpoint holds other adapters than those that are configured "
                f"(model.lora_rank={self.hparams['lora_rank']}, model.lora_targets="
                f"{self.hparams['lora_targets']}). Start with the settings of the run that wrote "
                "it (config.yaml in its folder)."
            )

    def report_sections(self, stage: str) -> list[Section]:
        """Returns the model's loss beside that of the baseline that it must beat."""
        metrics, data = self.trainer.callback_metrics, self._data()
        if f"{stage}/loss" not in metrics:
            return []
        split, loss = SPLITS[stage], float(metrics[f"{stage}/loss"])
        if f"{stage}/accuracy" in metrics:
            accuracy = float(metrics[f"{stage}/accuracy"])
            rows = [
                Row("loss", f"{loss:.3f}", "less than that of no preference", loss < _INDIFFERENT),
                Row("of no preference", f"{_INDIFFERENT:.3f}"),
                Row("prefers the chosen answer", f"{accuracy:.1%}"),
            ]
            return [section(f"Preferences ({split}, {data.origin})", rows)]
        unigram = data.unigram_loss(split)
        rows = [
            Row("model", f"{loss:.3f}", "less than the one below", loss < unigram),
            Row("unigram", f"{unigram:.3f}"),
        ]
        what = f"{split}: {data.num_judged(split):,} tokens, {data.origin}"
        return [section(f"Loss of a token that is learnt, in nats ({what})", rows)]

    def references(self, name: str) -> dict[str, float]:
        """Returns the loss, or the perplexity, of the baseline that the model must beat."""
        if self._data().hparams["objective"] == "dpo":
            return {"no preference": _INDIFFERENT} if name == "loss" else {}
        loss = self._data().unigram_loss("validation")
        if name == "loss":
            return {"unigram": loss}
        return {"unigram": math.exp(loss)} if name == self.validation_score else {}

    def log_evaluation(self, stage: str) -> None:
        """Logs means over the tokens of all processes, which the host reads in one wait."""
        loss, num_learnt, *num_right = self.read_totals()
        mean = loss / max(num_learnt, 1.0)
        if num_right:
            found = {f"{stage}/accuracy": num_right[0] / max(num_learnt, 1.0)}
        else:
            found = {f"{stage}/perplexity": math.exp(mean)}
        self.log_on_host({f"{stage}/loss": mean, **found}, True)

    def _print(self, path: Path) -> None:
        """Prints some of the answers, how many are exact, and how fast they were written."""
        assert self._writer is not None
        if not self.trainer.is_global_zero:
            return
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        for row in rows[:_SHOWN]:
            question = " ".join(str(row["messages"][-1]["content"]).split())
            print(f"  {row['index']}  {printable(question)} | {printable(row['answer'])}")
        sections = [self._writer.section("Pace of the first card")]
        if exact := _exact(rows):
            sections.insert(0, section("Answers that are exactly the expected ones", exact))
        print(table(sections), flush=True)

    def _data(self) -> LlmData:
        return self.data_of(LlmData, "tokenizer and rows")

    def _head(self, hidden: Tensor) -> Tensor:
        """Returns logits [N, V] of hidden states [N, D], as the model's own `forward` would."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        config = self.model.config.get_text_config()
        scale = getattr(config, "logits_scaling", None)  # Granite's
        limit = getattr(config, "final_logit_softcapping", None)  # Gemma's
        if scale:
            logits = logits / scale
        return torch.tanh(logits / limit) * limit if limit else logits

    def packed_logits(self, tokens: Tensor, sequence_ids: Tensor, positions: Tensor) -> Tensor:
        """Returns logits [B, T, V] of whole rows; the arguments are those of `hidden`."""
        with self.trainer.precision_plugin.forward_context():
            hidden = self.hidden(tokens, sequence_ids, positions)
            logits = self._head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
            if self._sequence is None:
                return logits
            return DTensor.from_local(logits, self._sequence, [Shard(1)]).full_tensor()

    def _prepare_rows(self) -> None:
        """Sets how documents are kept apart, and refuses rows that model or card cannot hold."""
        data, is_predicting = self._data(), self.trainer.state.fn == "predict"
        self.model.set_attn_implementation(self._attention)
        self._is_causal = False
        if is_predicting:
            return
        _check_positions(self.model, data)
        length = data.row_length
        if self._sequence is not None:
            attend_over_cards(self.model, self._sequence, length)
            self._is_causal = not data.are_rows_shared
        elif not data.are_rows_shared:
            self._is_causal = attend_without_mask(self.model)
        if not self._is_causal and self.trainer.strategy.root_device.type == "hpu":
            num_bytes = 2 if str(self.trainer.precision).startswith("bf16") else 4
            rows = data.samples_per_batch(is_training=self.trainer.state.fn == "fit")
            check_mask(rows, length, num_bytes, card_memory_bytes())

    def _compute_dtype(self) -> torch.dtype:
        """Returns the dtype in which attention is computed, which its mask must have, too."""
        kind = self.device.type
        is_autocast = torch.is_autocast_enabled(kind)
        return torch.get_autocast_dtype(kind) if is_autocast else self.model.dtype

    def _pretrained(self) -> PreTrainedModel:
        settings = self.hparams
        options = {}
        if settings["attention"] is not None:
            options["attn_implementation"] = settings["attention"]
        if takes_from_first(self.device_mesh, settings["sequence_parallel"]):
            config = load_pretrained(AutoConfig, "model.name", settings["name"])
            with torch.device("meta"):
                empty: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options)
            return empty.to(_DTYPES[settings["dtype"]])  # type: ignore[arg-type]
        options["dtype"] = _DTYPES[settings["dtype"]]
        if settings["method"] == "qlora":
            is_double = settings["double_quantization"]
            options |= four_bit_options(self._four_bit_dtype(), double_quantization=is_double)
        # Lightning calls this with the card as torch's device. Weights are read on the host first,
        # except under ZeRO-3, which puts the parts of each weight on the card as it is read.
        with nullcontext() if self._is_in_shards() else torch.device("cpu"):
            model: PreTrainedModel = load_pretrained(
                AutoModelForCausalLM, "model.name", settings["name"], **options
            )
        keep_gradients(model)
        return model.train()  # `from_pretrained` returns it in evaluation mode, without dropout

    def _four_bit_dtype(self) -> torch.dtype:
        """Returns the dtype that weights in four bits are converted to when they are multiplied."""
        precision = "" if self._trainer is None else str(self._trainer.precision)
        return torch.bfloat16 if precision.startswith("bf16") else _DTYPES[self.hparams["dtype"]]

    def _prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """Adds adapters and activation checkpointing to the model, if settings ask for them."""
        settings = self.hparams
        if self._has_adapters:
            # A rank whose model is on meta gets the fingerprint from the first one.
            if not next(model.parameters()).is_meta:
                self._base = base_fingerprint(model)
            with torch.device("cpu"), torch.random.fork_rng([]), whole_weights():
                torch.manual_seed(self._adapter_seed)
                self._add_lora(model)
        if settings["gradient_checkpointing"]:
            enable_checkpointing(model)
        return model

    def _add_lora(self, model: PreTrainedModel) -> None:
        settings = self.hparams
        add_lora(
            model,
            rank=settings["lora_rank"],
            alpha=settings["lora_alpha"],
            dropout=settings["lora_dropout"],
            targets=settings["lora_targets"],
            base_name=settings["name"],
            method=settings["method"],
        )

    def _is_in_shards(self) -> bool:
        strategy = None if self._trainer is None else self._trainer.strategy
        return isinstance(strategy, DeepSpeedStrategy) and strategy.zero_stage_3

    def _check(self, name: str) -> None:
        """Refuses a model that does not suit the settings, before any weight is read."""
        settings = self.hparams
        tokenizer = published_tokenizer(name, settings["tokenizer"])
        config = load_pretrained(AutoConfig, "model.name", name)
        check_quantization(config, name, settings["method"])
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except (ValueError, ImportError) as error:
            raise UserError(
                f"model.name={name} is a {config.model_type} model, which is no decoder-only "
                f"language model: {first_line(error)} Name one that is."
            ) from error
        num_tokens = len(load_tokenizer(tokenizer, ("eos_token",), "language models"))
        num_rows = model.get_input_embeddings().num_embeddings
        check_vocabulary(tokenizer, num_tokens, name, num_rows)
        if self._has_adapters:
            with torch.device("meta"):
                self._add_lora(model)

    def _from_nothing(self) -> LlamaForCausalLM:
        settings = self.hparams
        width, num_heads = settings["hidden_size"], settings["num_heads"]
        if width % num_heads or (width // num_heads) % 2:
            raise UserError(
                f"model.hidden_size={width} gives model.num_heads={num_heads} heads of "
                f"{width / num_heads:g} each, and rotary positions need an even size. Set a "
                "hidden_size that is a multiple of twice num_heads."
            )
        config = LlamaConfig(
            vocab_size=settings["vocab_size"],
            hidden_size=width,
            intermediate_size=settings["intermediate_size"] or -(-8 * width // 24) * 8,
            num_hidden_layers=settings["num_layers"],
            num_attention_heads=num_heads,
            initializer_range=settings["initializer_range"],
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
        )
        if settings["attention"] is not None:
            config._attn_implementation = settings["attention"]
        return LlamaForCausalLM(config)


def _exact(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Returns the share of answers that are exactly the expected ones, for each task."""
    known = [row for row in rows if "is_exact" in row]
    total = Counter(row["task"] for row in known)
    right = Counter(row["task"] for row in known if row["is_exact"])
    return [
        Row(task or "all", f"{right[task] / total[task]:.1%} of {total[task]}")
        for task in sorted(total)
    ]


def _check_positions(model: PreTrainedModel, data: LlmData) -> None:
    """Refuses rows that are longer than the model's positions or attention window allow."""
    config = model.config.get_text_config()
    length, packed = data.hparams["max_length"], data.row_length
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and length > limit:
        raise UserError(
            f"data.max_length={length} is more than the {limit} positions of the model. Set "
            f"data.max_length={limit} or less."
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and packed > window:
        raise UserError(
            f"The model's attention sees {window} tokens back, and would see further in a packed "
            f"row of {packed} tokens. Set data.pack_length={window} or less."
        )
