"""Has the tasks of `recipe_throughput.py`: three recipes on text that every machine has.

The recipes read the text as a user's own files, in the formats of the published data sets. The
other side gets the sequences of the recipe's batches, so both train on the same tokens, and begin
with the same weights.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import transformers
import yaml
from lightning.pytorch import LightningDataModule, LightningModule

import recipes.mrpc
from benchmarks.recipe_sides import Batch, HuggingFaceSide, RecipeSide
from lightning_gaudi.data import embedded_documents
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.mrpc.data import MrpcData
from recipes.mrpc.module import Mrpc
from recipes.t5_summarization.data import SummarizationData
from recipes.t5_summarization.module import T5Summarization

VOCAB_SIZE = 4096
"""With it, the projection to the vocabulary has the same share of these narrow models' work as in
BERT-base."""
SIZES = {"hidden_size": 256, "num_layers": 4, "num_heads": 4}
_IGNORED = -100
_PAIRS = yaml.safe_load((Path(recipes.mrpc.__path__[0]) / "packed_1x.yaml").read_text())


@dataclass
class Task(ABC):
    """A recipe with a small model, and what to compare it with."""

    folder: Path
    """Where to write text."""
    dropout: float
    name: ClassVar[str]
    title: ClassVar[str]
    target: ClassVar[float]
    """How many times the other side's tokens a second the recipe should reach."""
    num_steps: ClassVar[int]
    """The number of steps in one timing."""
    reference_batch_size: ClassVar[int]
    """Sequences in a batch of the other side, about as many as in one of the recipe, so that both
    have about as many steps in an epoch."""
    reference_class: ClassVar[type[transformers.PreTrainedModel]]
    pad_ids: ClassVar[dict[str, int]] = {}
    """The value that marks padding in a tensor, by its name, besides the masks."""

    def sides(self) -> tuple[RecipeSide, HuggingFaceSide]:
        """Returns both sides, with the same sequences and weights."""
        data = self.data()
        data.prepare_data()
        data.setup("fit")
        module = self.module(data)
        recipe = RecipeSide(module, data, self.count)
        rows = list(chain.from_iterable(map(self.rows, recipe.loader())))
        model = self.reference_model(module)
        collator = self.collator(data.tokenizer, model)
        size = self.reference_batch_size
        return recipe, HuggingFaceSide(model, rows, collator, size, self.count)

    @abstractmethod
    def data(self) -> LightningDataModule:
        """Returns the recipe's data."""

    @abstractmethod
    def module(self, data: LightningDataModule) -> LightningModule:
        """Returns the recipe's module, with a small model."""

    @abstractmethod
    def rows(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Yields the sequences of one of the recipe's batches, one by one and without padding."""

    @abstractmethod
    def collator(self, tokenizer: Any, model: Any) -> Callable[[list[dict[str, Any]]], Any]:
        """Returns the collator that users would choose, which pads to a batch's longest row."""

    def reference_model(self, module: LightningModule) -> transformers.PreTrainedModel:
        """Returns the recipe's model and weights, with the attention transformers prefers."""
        config = type(module.model.config)(**module.model.config.to_diff_dict())
        model = self.reference_class(config)
        missing, _ = model.load_state_dict(module.model.state_dict(), strict=False)
        assert not missing, missing
        return model

    def count(self, batch: Batch) -> int:
        """Returns the tokens of a batch of either side that are not padding."""
        mask = batch["sequence_ids"] if "sequence_ids" in batch else batch["attention_mask"]
        return int((mask > 0).sum())


class Pretraining(Task):
    """Trains masked-language modelling on packed rows, with predictions at gathered positions."""

    name, title, target = "bert", "BERT MLM, 512, packed", 5.0
    num_steps, reference_batch_size = 5, 16
    # Without the head for pairs, which is not trained.
    reference_class = transformers.BertForMaskedLM

    def data(self) -> LightningDataModule:
        return BertData(
            vocab_size=VOCAB_SIZE,
            max_seq_length=512,
            max_predictions_per_seq=80,
            max_sequences_per_pack=16,
            batch_size=4,
        )

    def module(self, data: LightningDataModule) -> LightningModule:
        return BertPretraining(
            vocab_size=VOCAB_SIZE, max_seq_length=512, dropout=self.dropout, **SIZES
        )

    def rows(self, batch: Batch) -> Iterator[dict[str, Any]]:
        names = ("input_ids", "sequence_ids", "masked_positions", "masked_labels")
        for ids, numbers, at, labels in zip(*(batch[name] for name in names), strict=True):
            is_hidden = labels != _IGNORED
            ids = ids.index_put((at[is_hidden],), labels[is_hidden])
            for number in range(1, int(numbers.max()) + 1):
                sequence = ids[numbers == number].tolist()
                special = [1, *[0] * (len(sequence) - 2), 1]
                yield {"input_ids": sequence, "special_tokens_mask": special}

    def collator(self, tokenizer: Any, model: Any) -> Callable[[list[dict[str, Any]]], Any]:
        return transformers.DataCollatorForLanguageModeling(tokenizer)


class Pairs(Task):
    """Classifies pairs of successive sentences, cut at 128 tokens, several in a row."""

    name, title, target = "pairs", "pairs, 128, packed", 2.6
    num_steps, reference_batch_size = 30, 32
    reference_class = transformers.BertForSequenceClassification

    def data(self) -> LightningDataModule:
        for split, part in _split(embedded_documents(["torch"])).items():
            pairs = [
                pair
                for document in part
                for pair in zip(document[::2], document[1::2], strict=False)
            ]
            rows = [
                {"sentence1": first, "sentence2": second, "label": number % 2}
                for number, (first, second) in enumerate(pairs)
            ]
            _write_jsonl(self.folder / f"{split}.jsonl", rows)
        return MrpcData(
            source="path",
            path=str(self.folder),
            vocab_size=VOCAB_SIZE,
            batch_size=12,
            max_length=128,
            max_sequences_per_pack=_PAIRS["data"]["max_sequences_per_pack"],
        )

    def module(self, data: LightningDataModule) -> LightningModule:
        return Mrpc(vocab_size=VOCAB_SIZE, max_length=128, dropout=self.dropout, **SIZES)

    def rows(self, batch: Batch) -> Iterator[dict[str, Any]]:
        names = ("sequence_ids", "input_ids", "token_type_ids", "labels")
        for places, ids, types, labels in zip(*(batch[name] for name in names), strict=True):
            for number in range(1, int(places.max()) + 1):
                pair = places == number
                yield {
                    "input_ids": ids[pair].tolist(),
                    "token_type_ids": types[pair].tolist(),
                    "attention_mask": [1] * int(pair.sum()),
                    "labels": int(labels[number - 1]),
                }

    def collator(self, tokenizer: Any, model: Any) -> Callable[[list[dict[str, Any]]], Any]:
        return transformers.DataCollatorWithPadding(tokenizer)


class Summaries(Task):
    """Generates the first sentence of a text from the others, cut at 512 tokens."""

    name, title, target = "summaries", "summaries, 512, packed", 4.0
    num_steps, reference_batch_size = 20, 16
    reference_class = transformers.T5ForConditionalGeneration
    pad_ids: ClassVar[dict[str, int]] = {"labels": _IGNORED}
    max_target_length: ClassVar[int] = 64  # holds 99 % of the first sentences

    def data(self) -> LightningDataModule:
        for split, part in _split(embedded_documents(["torch"])).items():
            rows = [
                {"id": str(number), "article": " ".join(rest), "highlights": first}
                for number, (first, *rest) in enumerate(part)
                if rest
            ]
            _write_jsonl(self.folder / f"{split}.jsonl", rows)
        return SummarizationData(
            source="path",
            path=str(self.folder),
            vocab_size=VOCAB_SIZE,
            batch_size=3,
            max_source_length=512,
            max_target_length=self.max_target_length,
            max_sequences_per_pack=None,
        )

    def module(self, data: LightningDataModule) -> LightningModule:
        sizes = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 4}
        return T5Summarization(vocab_size=VOCAB_SIZE, dropout=self.dropout, **sizes)

    def rows(self, batch: Batch) -> Iterator[dict[str, Any]]:
        names = ("sequence_ids", "input_ids", "labels_sequence_ids", "labels")
        for places, ids, targets, labels in zip(*(batch[name] for name in names), strict=True):
            for number in range(1, int(places.max()) + 1):
                source = ids[places == number].tolist()
                target = labels[targets == number].tolist()
                yield {"input_ids": source, "attention_mask": [1] * len(source), "labels": target}

    def collator(self, tokenizer: Any, model: Any) -> Callable[[list[dict[str, Any]]], Any]:
        return transformers.DataCollatorForSeq2Seq(tokenizer, model)

    def count(self, batch: Batch) -> int:
        return super().count(batch) + int((batch["labels"] != _IGNORED).sum())


TASKS: tuple[type[Task], ...] = (Pretraining, Pairs, Summaries)


def _split(documents: list[list[str]]) -> dict[str, list[list[str]]]:
    """Returns splits, nearly all for training, because nothing is evaluated here."""
    return {"train": documents[200:], "validation": documents[:100], "test": documents[100:200]}


def _write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
