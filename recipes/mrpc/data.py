"""Has the DataModule: sentence pairs in batches of a few shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import (
    BucketDataLoader,
    PackDataset,
    embedded_documents,
    optimal_buckets,
    pack,
)
from recipes.common.data import RecipeData
from recipes.common.errors import UserError
from recipes.common.reader import open_tables
from recipes.common.tokenization import (
    load_tokenizer,
    tokenizer_from_state,
    tokenizer_state,
    train_wordpiece,
)
from recipes.mrpc.baselines import Scores, baseline_scores
from recipes.mrpc.embedded import embedded_pairs
from recipes.mrpc.encoding import EncodedPairs, collate, collate_packs
from recipes.mrpc.pairs import FIELDS, Splits, read_pairs

_MAX_UNUSED = 127  # vocabularies are padded to multiples of 128 at most


class MrpcData(RecipeData):
    """Reads sentence pairs with labels, and pads them to a few lengths.

    Args:
        source: embedded (pairs that rules make from the documentation of Python and `packages`,
            on every machine), path (files of MRPC) or hub (a data set by name).
        path: a file, several, or a folder of them (see `common/reader.py`), or the data set's name.
        subset: configuration of a data set from the hub.
        columns: names of your columns, by those of MRPC: sentence1, sentence2, label.
        positive_label: the label that means a paraphrase, where labels are not 1 and 0, true and
            false, or yes and no.
        packages: installed packages whose documentation the embedded pairs are made from.
        pairs_per_sentence: how often each embedded training sentence is rewritten.
        validation_share: of the training pairs, held out for validation where there is no file
            for it (MSR), and likewise for test; of the embedded documents, and as many for test.
        tokenizer: name or folder of a published tokenizer, that of the model; None trains
            WordPiece on the training sentences.
        vocab_size: of the model; the upper limit of a vocabulary that is trained.
        batch_size: pairs of a batch, on each card (B).
        eval_batch_size: likewise, in validation, test and prediction; None for as many.
        max_length: tokens of the longest pair; a longer one is cut, the longer sentence first.
        num_buckets: lengths that pairs are padded to, so shapes that are compiled. None pads every
            pair to max_length.
        max_sequences_per_pack: pairs that share a row in training, and do not see each other; 1:
            none shares one. `batch_size` counts rows.
        pack_length: tokens of such a row; None for max_length.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the order, of what is held out and of the embedded pairs.

    Raises:
        UserError: for data or a tokenizer that cannot be had or do not fit, here already: before
            a card is acquired.
    """

    def __init__(
        self,
        source: Literal["embedded", "path", "hub"] = "embedded",
        path: list[str] | str | None = None,
        subset: str | None = "mrpc",
        columns: Mapping[str, str] | None = None,
        positive_label: str | None = None,
        packages: Sequence[str] = ("torch",),
        pairs_per_sentence: int = 3,
        validation_share: float = 0.1,
        tokenizer: str | None = None,
        vocab_size: int = 3000,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        max_length: int = 128,
        num_buckets: int | None = 4,
        max_sequences_per_pack: int = 1,
        pack_length: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.samples_per_batch(is_training=False)
        if not 0 < validation_share < 0.5:
            raise UserError(f"data.validation_share={validation_share} is not between 0 and 0.5.")
        if max_length < 8:
            raise UserError(f"data.max_length={max_length} leaves no room for two sentences.")
        if max_sequences_per_pack < 1:
            raise UserError(
                f"data.max_sequences_per_pack={max_sequences_per_pack} leaves a row empty. Set 1 "
                "for a pair a row, or more."
            )
        if pack_length is not None and pack_length < max_length:
            raise UserError(
                f"data.pack_length={pack_length} does not hold a pair of data.max_length="
                f"{max_length} tokens. Raise the first, or lower the second."
            )
        self.tokenizer: PreTrainedTokenizerBase | None = None
        if tokenizer is not None:
            self.tokenizer = load_tokenizer(tokenizer)
            _check_tokenizer(self.tokenizer, tokenizer, vocab_size)
        if source != "embedded" and path is None:
            needed = "a file, or a folder of them." if source == "path" else "nyu-mll/glue."
            raise UserError(f"data.source={source} needs data.path: {needed}")
        self.pairs: Splits = self._read() if source == "path" else {}
        self._encoded: dict[str, EncodedPairs] = {}
        self._baselines: dict[str, Scores] = {}

    @property
    def origin(self) -> str:
        """Returns in words where the pairs are from."""
        if self.hparams["source"] == "embedded":
            return "made by rules from sentences of documentation (embedded)"
        return f"from {self.hparams['path']}"

    def read(self, command: str) -> None:
        """Encodes the pairs that a fit needs, but for those of the hub, which one rank asks."""
        # Other ranks of a machine find then what the first one has put into the cache.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        if command == "fit" and self.hparams["source"] != "hub" and is_first:
            self.prepare_data()
            self.setup("fit")
            for split in ("train", "validation"):
                if split in self.pairs:
                    self._encode(split)

    def prepare_data(self) -> None:
        """Fills the cache of the embedded text, or of the hub, once a machine."""
        if self.hparams["source"] == "embedded":
            embedded_documents(self.hparams["packages"])
        elif self.hparams["source"] == "hub":
            self._read()

    def setup(self, stage: str) -> None:
        """Reads or makes the pairs and learns a tokenizer, the same on every rank."""
        self.pairs = self.pairs or self._read()
        if self.tokenizer is None and "train" in self.pairs:
            texts = dict.fromkeys(chain.from_iterable(pair[:2] for pair in self.pairs["train"]))
            self.tokenizer = train_wordpiece([list(texts)], self.hparams["vocab_size"])

    def train_dataloader(self) -> BucketDataLoader:
        return self.resumed(self._dataloader("train"))

    def val_dataloader(self) -> BucketDataLoader:
        return self._dataloader("validation")

    def test_dataloader(self) -> BucketDataLoader:
        pairs = self._split("test")
        if num_unknown := sum(pair.label is None for pair in pairs):
            raise UserError(
                f"The test split {self.origin} has no label for {num_unknown} of its {len(pairs)} "
                "pairs, as GLUE publishes it. Use `predict`, or `validate` for scores."
            )
        return self._dataloader("test")

    def predict_dataloader(self) -> BucketDataLoader:
        """Returns the pairs of the test split, whose labels are not needed."""
        return self._dataloader("test")

    def baselines(self, split: str) -> Scores:
        """Returns F1 and accuracy of the baselines that a model must beat, by name."""
        if split not in self._baselines:
            train = self.pairs.get("train", [])
            self._baselines[split] = baseline_scores(train, self._split(split))
        return self._baselines[split]

    def state_dict(self) -> dict[str, Any]:
        """Puts a tokenizer that was trained here, and the place, into the checkpoint."""
        is_trained = not self.hparams["tokenizer"]
        return super().state_dict() | (tokenizer_state(self.tokenizer) if is_trained else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the tokenizer that the checkpoint was trained with, and its place in the epoch."""
        super().load_state_dict(state_dict)
        if not self.hparams["tokenizer"] and "tokenizer" in state_dict:
            self.tokenizer = tokenizer_from_state(state_dict)
            self._encoded = {}

    def _read(self) -> Splits:
        settings = self.hparams
        if settings["source"] == "embedded":
            names = ("packages", "pairs_per_sentence", "validation_share", "seed")
            return embedded_pairs(**{name: settings[name] for name in names})
        tables = open_tables(
            settings["source"],
            settings["path"],
            FIELDS,
            subset=settings["subset"],
            columns=settings["columns"],
            held_out_share=settings["validation_share"],
            seed=settings["seed"],
        )
        return read_pairs(tables, settings["positive_label"])

    def _split(self, split: str) -> list[Any]:
        if split not in self.pairs:
            raise UserError(
                f"data.path={self.hparams['path']} has no {split} split, but only "
                f"{', '.join(self.pairs)}. Add its file."
            )
        return self.pairs[split]

    def _dataloader(self, split: str) -> BucketDataLoader:
        """Returns lengths that suit the split; a pair gets the smallest that holds it."""
        settings = self.hparams
        if self.tokenizer is None:  # and no checkpoint has brought one
            self._split("train")
        dataset: EncodedPairs | PackDataset = self._encode(split)
        lengths, boundaries = dataset.lengths, self._boundaries(dataset)
        batch_size = self.samples_per_batch(is_training=split == "train")
        collate_fn = partial(collate, pad_token_id=self.tokenizer.pad_token_id)
        if split == "train" and (most := settings["max_sequences_per_pack"]) > 1:
            row = settings["pack_length"] or settings["max_length"]
            dataset = PackDataset(dataset, pack(lengths.tolist(), row, max_sequences=most))
            lengths, boundaries = [row] * len(dataset), [row]
            collate_fn = partial(
                collate_packs,
                pad_token_id=self.tokenizer.pad_token_id,
                max_pairs=most,
                mean_pairs=batch_size * dataset.samples_per_pack,
            )
        sampler = self.sampler(lengths, boundaries, is_training=split == "train")
        return BucketDataLoader(dataset, sampler, collate_fn, **self.workers)

    def _encode(self, split: str) -> EncodedPairs:
        if split not in self._encoded:
            pairs, limit = self._split(split), self.hparams["max_length"]
            self._encoded[split] = EncodedPairs(pairs, self.tokenizer, limit)
        return self._encoded[split]

    def _boundaries(self, dataset: EncodedPairs) -> list[int]:
        limit, number = self.hparams["max_length"], self.hparams["num_buckets"]
        if number is None:
            return [limit]
        longest = -(-int(dataset.lengths.max()) // 8) * 8
        return list(optimal_buckets(dataset.lengths, number, max_length=min(longest, limit)))


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str, vocab_size: int) -> None:
    """Refuses the tokenizer of another model, which has another number of tokens."""
    if not 0 <= vocab_size - len(tokenizer) <= _MAX_UNUSED:
        raise UserError(
            f"data.tokenizer={name} has {len(tokenizer)} tokens, but data.vocab_size is "
            f"{vocab_size}, the number that the model has embeddings for. Name the tokenizer that "
            f"the model was trained with, and set data.vocab_size to the model's vocab_size."
        )
