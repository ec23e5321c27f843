"""The DataModule: from a corpus to batches of packed, masked rows of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lightning_gaudi.data import (
    BucketDataLoader,
    cache_folder,
    evaluation_loader,
)
from recipes.bert_pretraining.checks import (
    check_counts,
    check_documents,
    check_sizes,
    check_tokenizer,
)
from recipes.bert_pretraining.corpora import Source
from recipes.bert_pretraining.fill_mask import MaskedLines
from recipes.bert_pretraining.packed import (
    PackedDataset,
    Vocabulary,
    collate,
)
from recipes.bert_pretraining.prepared import Documents, Prepared, Settings, prepare
from recipes.bert_pretraining.rows import RowShape
from recipes.bert_pretraining.several import check_sources, open_corpora
from recipes.bert_pretraining.unigram import UnigramReference, unigram_reference
from recipes.common.data import RecipeData
from recipes.common.errors import UserError
from recipes.common.tokenization import load_tokenizer, tokenizer_from_state, tokenizer_state


class BertData(RecipeData):
    """Packed rows for masked-language modelling, with or without next-sentence prediction.

    Args:
        source: embedded (documentation of Python and `packages`, present on every machine), path
            (UTF-8 text, documents separated by blank lines, or tables) or hub (a data set by name).
        path: the file, or a folder of files of one kind; or the data set's name. A list is read in
            its order, as one corpus.
        packages: installed packages whose documentation belongs to the embedded corpus.
        subset: configuration of a data set from the hub; of several, a list of as many.
        columns: the name of your column, by that of the recipe: text, a document in each row of a
            table or of a data set from the hub.
        max_documents: use no more documents than this, from the beginning.
        tokenizer: name or folder of a published tokenizer; None trains WordPiece on the
            training documents. The one in a checkpoint that is resumed comes before both.
        cache_dir: where token ids are kept, so that only the first run with these settings makes
            them; what was not used for 30 days is removed. Default: `tokens` in
            LIGHTNING_GAUDI_CACHE_DIR, which is `~/.cache/lightning_gaudi` unless set.
        vocab_size: size of the vocabulary, and the upper limit of the one that is trained.
        batch_size: rows of a batch, on each card (B).
        max_seq_length: tokens of a row (T), the longest sequence.
        max_predictions_per_seq: predictions of a row (P): at least 15 % of T.
        max_sequences_per_pack: sequences that share a row (K). 1 turns packing off.
        documents: separate (each has sequences of its own) or concatenated (one after another,
            each between [CLS] and [SEP], and cut where a row is full: no padding, no packing).
        truncate_documents: concatenated documents are no longer than a row; what is, loses its end.
        next_sentence: make sentence pairs for next-sentence prediction. Half of them, in every
            epoch the other half, have their second segment exchanged for one of another document.
        validation_share: share of the documents held out for validation, and as much for test.
        predict_path: for `predict`: a text file in which words are [MASK], a row for each line.
            None takes the masked text that was held out for the test.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the split, the pairs, the order and the masks.

    Raises:
        UserError: for a corpus that does not exist, a tokenizer in a folder that does not fit,
            and sizes that do not fit together, here already: before a card is acquired.
    """

    def __init__(
        self,
        source: Source = "embedded",
        path: list[str] | str | None = None,
        packages: Sequence[str] = ("torch",),
        subset: list[str | None] | str | None = None,
        columns: Mapping[str, str] | None = None,
        max_documents: int | None = None,
        tokenizer: str | None = None,
        cache_dir: str | None = None,
        vocab_size: int = 2048,
        batch_size: int = 32,
        max_seq_length: int = 128,
        max_predictions_per_seq: int = 20,
        max_sequences_per_pack: int = 8,
        documents: Documents = "separate",
        truncate_documents: bool = False,
        next_sentence: bool = False,
        validation_share: float = 0.05,
        predict_path: str | None = None,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        names = {"columns": columns, "max_documents": max_documents}
        check_sources(source, path, subset, packages=packages, **names)
        if predict_path is not None and not Path(predict_path).expanduser().is_file():
            raise UserError(
                f"data.predict_path={predict_path} does not exist. Name a UTF-8 text file in which "
                "words are replaced by [MASK], or leave it out to take held-out text."
            )
        check_sizes(max_seq_length, max_predictions_per_seq, validation_share, next_sentence)
        check_documents(documents, truncate_documents, next_sentence, max_sequences_per_pack)
        check_counts(vocab_size, batch_size, max_sequences_per_pack, num_workers)
        self.row_shape = RowShape(max_seq_length, max_predictions_per_seq, max_sequences_per_pack)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self._saved_tokenizer: PreTrainedTokenizerBase | None = None
        self.datasets: dict[str, PackedDataset] = {}
        if tokenizer is not None and _is_folder(tokenizer):
            check_tokenizer(load_tokenizer(tokenizer), vocab_size)

    def prepare_data(self) -> None:
        """Fills the caches, once a machine: downloads, token ids, planned rows."""
        self._prepare()

    def setup(self, stage: str) -> None:
        """Maps what `prepare_data` made; the same on every rank."""
        if not self.datasets:
            self._make_datasets()

    def _make_datasets(self) -> None:
        prepared = self._prepare()
        self.tokenizer = prepared.tokenizer
        vocabulary, seed = _vocabulary(prepared.tokenizer), self.hparams["seed"]
        self.datasets = {
            split: PackedDataset(prepared.corpus, plan, vocabulary, self.row_shape, seed)
            for split, plan in prepared.plans.items()
        }

    def _prepare(self) -> Prepared:
        settings, tokenizer = self.hparams, self._known_tokenizer()
        names = ("packages", "subset", "columns", "max_documents")
        corpus = open_corpora(
            settings["source"], settings["path"], **{name: settings[name] for name in names}
        )
        folder = settings["cache_dir"]
        prepared = prepare(
            corpus,
            tokenizer,
            Settings(
                settings["vocab_size"],
                self.row_shape,
                settings["next_sentence"],
                settings["validation_share"],
                settings["seed"],
                settings["documents"],
                settings["truncate_documents"],
            ),
            Path(folder).expanduser() if folder else cache_folder("tokens"),
        )
        check_tokenizer(prepared.tokenizer, settings["vocab_size"])
        return prepared

    def _known_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Returns the tokenizer of the settings or the checkpoint; None if it is to be trained."""
        name, saved = self.hparams["tokenizer"], self._saved_tokenizer
        named = load_tokenizer(name) if name else None
        if named and saved and named.get_vocab() != saved.get_vocab():
            raise UserError(
                f"The checkpoint was trained with another vocabulary than that of "
                f"data.tokenizer={name}: its weights mean other tokens. Name the tokenizer that it "
                "was trained with, or leave data.tokenizer out to take the one in the checkpoint."
            )
        known = named or saved
        if known is not None:
            check_tokenizer(known, self.hparams["vocab_size"])
        return known

    def train_dataloader(self) -> BucketDataLoader:
        return self.resumed(self._dataloader("train"))

    def val_dataloader(self) -> BucketDataLoader:
        return self._dataloader("validation")

    def test_dataloader(self) -> BucketDataLoader:
        return self._dataloader("test")

    def predict_dataloader(self) -> BucketDataLoader:
        path = self.hparams["predict_path"]
        if path is None:
            return self._dataloader("test")
        assert self.tokenizer is not None  # `setup` came first
        rows = MaskedLines(path, self.tokenizer, self.row_shape)
        return evaluation_loader(rows, self.hparams["batch_size"], collate)

    def state_dict(self) -> dict[str, Any]:
        """The tokenizer travels in the checkpoint: without it the weights mean nothing."""
        is_fast = isinstance(self.tokenizer, PreTrainedTokenizerFast)
        return super().state_dict() | (tokenizer_state(self.tokenizer) if is_fast else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the tokenizer that the checkpoint was trained with.

        Lightning calls this after `setup`: the text is tokenized again if it has to be.

        Raises:
            UserError: if data.tokenizer names one with another vocabulary, then or in `setup`.
        """
        super().load_state_dict(state_dict)
        if "tokenizer" not in state_dict:
            return
        saved = self._saved_tokenizer = tokenizer_from_state(state_dict)
        if self.tokenizer is not None and self.tokenizer.get_vocab() != saved.get_vocab():
            self._make_datasets()

    def unigram_reference(self, split: str = "validation") -> UnigramReference:
        """Gives what guessing by word frequency reaches on the text and the targets of a split."""
        dataset = self.datasets[split]
        corpus = dataset.corpus
        text = [corpus.text(start, stop) for start, stop in dataset.plan.text_ranges()]
        labels = np.concatenate([dataset[0, i]["masked_labels"] for i in range(len(dataset))])
        kept = np.concatenate(text)
        kept = kept[~np.isin(kept, dataset.vocabulary.special)]
        return unigram_reference(kept, labels[labels >= 0])

    def _dataloader(self, split: str) -> BucketDataLoader:
        is_training, dataset = split == "train", self.datasets[split]
        batch_size = self.hparams["batch_size"]
        num_ranks = 1 if self.trainer is None else self.trainer.world_size
        if not len(dataset):
            raise UserError(
                f"The {split} documents give no row. Use more text, or a larger "
                "data.validation_share; with data.next_sentence=true, documents of more than one "
                "sentence."
            )
        accumulated = self.num_accumulated
        if len(dataset) < batch_size * num_ranks * accumulated and is_training:
            on = f" on each of {num_ranks} cards" if num_ranks > 1 else ""
            on += f", accumulated {accumulated} times" if accumulated > 1 else ""
            raise UserError(
                f"The training text fills {len(dataset)} row(s), less than one batch of "
                f"data.batch_size={batch_size}{on}. Use more text, or a smaller batch."
            )
        if not is_training:
            names = ("masked_labels", "next_sentence_labels")
            return evaluation_loader(
                dataset, batch_size, collate, label_names=names, **self.workers
            )
        length = self.row_shape.max_seq_length
        order = self.sampler(np.full(len(dataset), length), [length], is_training=True)
        return BucketDataLoader(dataset, order, collate, with_epoch=True, **self.workers)


def _is_folder(tokenizer: str) -> bool:
    """Returns whether it names a folder rather than a tokenizer of the hub."""
    return tokenizer.startswith(("/", ".", "~")) or Path(tokenizer).is_dir()


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    return Vocabulary(
        size=len(tokenizer),
        pad=tokenizer.pad_token_id,
        cls=tokenizer.cls_token_id,
        sep=tokenizer.sep_token_id,
        mask=tokenizer.mask_token_id,
        special=tuple(tokenizer.all_special_ids),
    )
