"""The DataModule: from a corpus to batches of packed, masked rows of one shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lightning_gaudi.data import pack
from recipes.bert_pretraining.corpora import Source, check_source, load_documents
from recipes.bert_pretraining.packed import (
    EpochSampler,
    PackedDataset,
    RowShape,
    Vocabulary,
    collate,
)
from recipes.bert_pretraining.sequences import (
    num_special_tokens,
    sentence_pairs,
    sequence_lengths,
    single_sequences,
)
from recipes.bert_pretraining.tokenized import TokenizedCorpus, tokenize
from recipes.bert_pretraining.unigram import UnigramReference, unigram_reference
from recipes.common.tokenization import (
    load_tokenizer,
    tokenizer_from_state,
    tokenizer_state,
    train_wordpiece,
)

_SPLITS = ("train", "validation", "test")


class BertData(LightningDataModule):
    """Packed rows for masked-language modelling, with or without next-sentence prediction.

    Args:
        source: embedded (documentation of Python and `packages`, present on every machine), path
            (UTF-8 text files, documents separated by blank lines) or hub (a data set by name).
        path: the file or folder, or the data set's name.
        packages: installed packages whose documentation belongs to the embedded corpus.
        subset: configuration of a data set from the hub.
        text_column: column of a data set from the hub.
        max_documents: use no more documents than this.
        tokenizer: name or folder of a published tokenizer; None trains WordPiece on the
            training documents.
        vocab_size: size of the vocabulary, and the upper limit of the one that is trained.
        batch_size: rows of a batch, on each card (B).
        max_seq_length: tokens of a row (T), the longest sequence.
        max_predictions_per_seq: predictions of a row (P): at least 15 % of T.
        max_sequences_per_pack: sequences that share a row (K). 1 turns packing off.
        next_sentence: make sentence pairs with balanced labels, for next-sentence prediction.
        validation_share: share of the documents held out for validation, and as much for test.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the split, the pairs, the order and the masks.

    Raises:
        ValueError: for a corpus that does not exist and for sizes that do not fit together, here
            already: before a card is acquired.
    """

    def __init__(
        self,
        source: Source = "embedded",
        path: str | None = None,
        packages: Sequence[str] = ("torch",),
        subset: str | None = None,
        text_column: str = "text",
        max_documents: int | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 2048,
        batch_size: int = 32,
        max_seq_length: int = 128,
        max_predictions_per_seq: int = 20,
        max_sequences_per_pack: int = 8,
        next_sentence: bool = False,
        validation_share: float = 0.05,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_source(source, path)
        _check_sizes(max_seq_length, max_predictions_per_seq, validation_share, next_sentence)
        self.row_shape = RowShape(max_seq_length, max_predictions_per_seq, max_sequences_per_pack)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.datasets: dict[str, PackedDataset] = {}

    def prepare_data(self) -> None:
        """Fill the caches of downloads and of the embedded corpus, once a machine."""
        self._load_documents()

    def setup(self, stage: str) -> None:
        """Split, tokenize and pack; the same on every rank."""
        if self.datasets:
            return
        parts = self._split(self._load_documents())
        if self.tokenizer is None:
            name, size = self.hparams["tokenizer"], self.hparams["vocab_size"]
            self.tokenizer = load_tokenizer(name) if name else train_wordpiece(parts[0], size)
        self._check_tokenizer(self.tokenizer)
        for split, documents in zip(_SPLITS, parts, strict=True):
            self.datasets[split] = self._dataset(split, tokenize(documents, self.tokenizer))

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._dataloader("train")

    def val_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._dataloader("validation")

    def test_dataloader(self) -> DataLoader[dict[str, Any]]:
        return self._dataloader("test")

    def state_dict(self) -> dict[str, Any]:
        """The tokenizer travels in the checkpoint: without it the weights mean nothing."""
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            return {}
        return tokenizer_state(self.tokenizer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the tokenizer that the checkpoint was trained with."""
        if not self.hparams["tokenizer"] and "tokenizer" in state_dict:
            self.tokenizer = tokenizer_from_state(state_dict)

    def unigram_reference(self, split: str = "validation") -> UnigramReference:
        """What guessing by word frequency reaches on the text and the targets of a split."""
        dataset = self.datasets[split]
        text = [
            dataset.tokens[start:stop]
            for row in dataset.sequences
            for start, stop in (row[0:2], row[2:4])
        ]
        labels = np.concatenate([dataset[0, i]["masked_labels"] for i in range(len(dataset))])
        kept = np.concatenate(text)
        kept = kept[~np.isin(kept, dataset.vocabulary.special)]
        return unigram_reference(kept, labels[labels >= 0])

    def _load_documents(self) -> list[list[str]]:
        names = ("packages", "subset", "text_column", "max_documents")
        options = {name: self.hparams[name] for name in names}
        return load_documents(self.hparams["source"], self.hparams["path"], **options)

    def _split(self, documents: list[list[str]]) -> list[list[list[str]]]:
        """Training, validation and test documents, drawn at random but always the same."""
        held_out = max(1, round(self.hparams["validation_share"] * len(documents)))
        if len(documents) <= 2 * held_out:
            raise ValueError(
                f"The corpus has {len(documents)} document(s), too few to hold out {held_out} for "
                "validation and as many for test. Separate documents by blank lines."
            )
        order = np.random.default_rng(self.hparams["seed"]).permutation(len(documents))
        groups = order[2 * held_out :], order[:held_out], order[held_out : 2 * held_out]
        return [[documents[i] for i in group] for group in groups]

    def _check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if len(tokenizer) > self.hparams["vocab_size"]:
            raise ValueError(
                f"The tokenizer has {len(tokenizer)} tokens, but data.vocab_size is "
                f"{self.hparams['vocab_size']}: the model would have no embedding for the others. "
                f"Set data.vocab_size={len(tokenizer)}."
            )

    def _dataset(self, split: str, corpus: TokenizedCorpus) -> PackedDataset:
        # Each split draws on its own: more training text must not change the validation pairs.
        rng = np.random.default_rng((self.hparams["seed"], _SPLITS.index(split)))
        if self.hparams["next_sentence"]:
            sequences = sentence_pairs(corpus, self.row_shape.max_seq_length, rng)
        else:
            sequences = single_sequences(corpus, self.row_shape.max_seq_length)
        packs = list(
            pack(
                sequence_lengths(sequences).tolist(),
                self.row_shape.max_seq_length,
                max_sequences=self.row_shape.max_sequences_per_pack,
            )
        )
        return PackedDataset(
            corpus.tokens,
            sequences,
            packs,
            _vocabulary(self.tokenizer),
            self.row_shape,
            self.hparams["seed"],
        )

    def _dataloader(self, split: str) -> DataLoader[dict[str, Any]]:
        is_training, dataset = split == "train", self.datasets[split]
        batch_size, workers = self.hparams["batch_size"], self.hparams["num_workers"]
        num_ranks = 1 if self.trainer is None else self.trainer.world_size
        if len(dataset) < batch_size * num_ranks and is_training:
            on = f" on each of {num_ranks} cards" if num_ranks > 1 else ""
            raise ValueError(
                f"The training text fills {len(dataset)} row(s), less than one batch of "
                f"data.batch_size={batch_size}{on}. Use more text, or a smaller batch."
            )
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=EpochSampler(
                len(dataset),
                batch_size,
                shuffle=is_training,
                seed=self.hparams["seed"],
                num_ranks=num_ranks,
                rank=0 if self.trainer is None else self.trainer.global_rank,
            ),
            collate_fn=collate,
            drop_last=is_training,
            num_workers=workers,
            persistent_workers=workers > 0,
            # Loaders draw a seed: from torch's own generator it would change the model's dropout.
            generator=torch.Generator().manual_seed(self.hparams["seed"]),
        )


def _check_sizes(
    max_seq_length: int, max_predictions: int, validation_share: float, next_sentence: bool
) -> None:
    if max_seq_length <= num_special_tokens(next_sentence) + 4:
        raise ValueError(f"data.max_seq_length={max_seq_length} leaves no room for text.")
    wanted = math.ceil(RowShape.mlm_probability * (max_seq_length - 2))
    if max_predictions < wanted:
        raise ValueError(
            f"data.max_predictions_per_seq={max_predictions} is too small: 15 % of "
            f"data.max_seq_length={max_seq_length} tokens are predicted, so set at least {wanted}."
        )
    if not 0 < validation_share < 0.5:
        raise ValueError(f"data.validation_share={validation_share} is not between 0 and 0.5.")


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    return Vocabulary(
        size=len(tokenizer),
        pad=tokenizer.pad_token_id,
        cls=tokenizer.cls_token_id,
        sep=tokenizer.sep_token_id,
        mask=tokenizer.mask_token_id,
        special=tuple(tokenizer.all_special_ids),
    )
