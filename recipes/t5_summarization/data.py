"""The DataModule: articles and summaries in batches of a few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import (
    BucketDataLoader,
    PackDataset,
    fitting_capacity,
    optimal_buckets,
    pack_batch,
    pack_together,
    pad_batch,
)
from recipes.common.data import RecipeData
from recipes.common.errors import UserError
from recipes.common.reader import Table, open_tables
from recipes.common.tokenization import (
    T5_TOKENS,
    learnt_tokenizer_state,
    load_tokenizer,
    tokenizer_from_state,
    train_bpe,
)
from recipes.t5_summarization.corpora import (
    FIELDS,
    Row,
    Source,
    check_source,
    embedded_rows,
    marked,
    read_rows,
)
from recipes.t5_summarization.rouge import lead
from recipes.t5_summarization.tokens import TokenizedRows, tokenize

IGNORED = -100
"""The label that the loss leaves out."""
_MIN_LENGTH = 8


class SummarizationData(RecipeData):
    """Pads articles to one of a few lengths, and summaries to one.

    Args:
        source: embedded (short articles made of the documentation of Python and `packages`, on
            every machine), path (files of CNN/DailyMail) or hub (a data set by name).
        path: a file, several, or a folder of them (see `common/reader.py`), or the data set's
            name: abisee/cnn_dailymail.
        subset: configuration of a data set from the hub: 3.0.0.
        columns: names of your columns, by those of CNN/DailyMail: article, highlights and id; rows
            without an id are numbered.
        validation_share: of the training rows, held out for validation where there is no file for
            it, and likewise for test.
        packages: installed packages whose documentation belongs to the embedded articles.
        source_prefix: put before each article: T5 was trained to summarize what starts so.
        tokenizer: name or folder of a published tokenizer, that of the model; None learns a
            vocabulary from the training rows.
        vocab_size: of a vocabulary that is learnt, and of a model that starts from nothing.
        batch_size: rows of a batch, on each card (B).
        eval_batch_size: likewise, in validation, test and prediction; None for as many.
        max_source_length: tokens of the longest article (S).
        max_target_length: tokens of the longest summary (T), to which all are padded, and that are
            generated.
        truncate_source: cut longer articles; False refuses them. Longer summaries are always cut.
        num_buckets: lengths that articles are padded to, so shapes that are compiled. None pads
            every article to max_source_length.
        max_sequences_per_pack: articles that share a row in training, and their summaries one of
            as many tokens as leave least padding; they do not see each other. 1: none shares one.
            None: as many as fit. `batch_size` counts rows.
        pack_length: source tokens of such a row; None for max_source_length.
        loss_on_padding: the padding of summaries is learnt, too, as transformers' example does
            with `--ignore_pad_token_for_loss False`. False leaves it out of the loss.
        num_generated: rows of the validation split, drawn at random, to generate summaries for; 0
            leaves ROUGE out of validation, None takes all. A test generates all.
        max_train_samples: use no more training rows than this.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the order, of `num_generated` and of the embedded articles.

    Raises:
        UserError: for data or a tokenizer that cannot be had or do not fit, here already: before
            a card is acquired.
    """

    def __init__(
        self,
        source: Source = "embedded",
        path: list[str] | str | None = None,
        subset: str | None = None,
        columns: Mapping[str, str] | None = None,
        validation_share: float = 0.05,
        packages: Sequence[str] = ("torch",),
        source_prefix: str = "summarize: ",
        tokenizer: str | None = None,
        vocab_size: int = 768,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        max_source_length: int = 512,
        max_target_length: int = 128,
        truncate_source: bool = True,
        num_buckets: int | None = 4,
        max_sequences_per_pack: int | None = 1,
        pack_length: int | None = None,
        loss_on_padding: bool = False,
        num_generated: int | None = 256,
        max_train_samples: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.samples_per_batch(is_training=False)
        _check_lengths(max_source_length, max_target_length)
        check_source(source, path)
        if max_sequences_per_pack is not None and max_sequences_per_pack < 1:
            raise UserError(
                f"data.max_sequences_per_pack={max_sequences_per_pack} leaves a row empty. Set 1 "
                "for an article a row, or null for as many as fit."
            )
        if pack_length is not None and pack_length < max_source_length:
            raise UserError(
                f"data.pack_length={pack_length} does not hold an article of "
                f"data.max_source_length={max_source_length} tokens. Raise the first, or lower the "
                "second."
            )
        if max_sequences_per_pack != 1 and loss_on_padding:
            raise UserError(
                "data.loss_on_padding=true learns the padding behind each summary, and packed rows "
                "(data.max_sequences_per_pack) have none. Leave one of them out."
            )
        if not 0 < validation_share < 0.5:
            raise UserError(f"data.validation_share={validation_share} is not between 0 and 0.5.")
        self._tables: dict[str, Table] = {}
        if source == "path":
            for table in self._open().values():
                table.check()
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.datasets: dict[str, TokenizedRows] = {}
        if tokenizer:
            self.tokenizer = load_tokenizer(tokenizer, tuple(T5_TOKENS), "T5")

    @property
    def baselines(self) -> dict[str, Callable[[str], str]]:
        """Returns functions, by name, that summarize an article without learning."""
        is_embedded = self.hparams["source"] == "embedded"
        return {"lead1": lead, "marked": marked} if is_embedded else {"lead1": lead}

    def prepare_data(self) -> None:
        """Fills the caches of downloads and of the embedded text, once a machine."""
        if self.hparams["source"] != "path":
            next(self._rows("train"), None)

    def dataset(self, split: str) -> TokenizedRows:
        """Returns the rows of a split, read and tokenized when they are first asked for.

        Raises:
            UserError: if it has no rows, or longer ones than it may have.
        """
        if split not in self.datasets:
            settings = self.hparams
            rows = tokenize(
                self._rows(split),
                self._tokenizer(),
                prefix=settings["source_prefix"],
                max_source_length=settings["max_source_length"],
                max_target_length=settings["max_target_length"],
                keep_text=split != "train",
            )
            self._check_rows(split, rows)
            self.datasets[split] = rows
        return self.datasets[split]

    def train_dataloader(self) -> BucketDataLoader:
        rows = self.dataset("train")
        is_packed = self.hparams["max_sequences_per_pack"] != 1
        loader = self._packed_loader(rows) if is_packed else self._loader(rows, is_training=True)
        return self.resumed(loader)

    def val_dataloader(self) -> list[BucketDataLoader]:
        return self._evaluation_loaders("validation")

    def test_dataloader(self) -> list[BucketDataLoader]:
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> BucketDataLoader:
        return self._loader(self.dataset("test"))

    def state_dict(self) -> dict[str, Any]:
        """Puts a learnt vocabulary into the checkpoint, since its weights need just that one."""
        named = self.hparams["tokenizer"]
        return super().state_dict() | learnt_tokenizer_state(self.tokenizer, named)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the vocabulary that the checkpoint was trained with."""
        super().load_state_dict(state_dict)
        if not self.hparams["tokenizer"] and "tokenizer" in state_dict:
            self.tokenizer = tokenizer_from_state(state_dict)

    def rows_to_generate(self, split: str) -> list[Row]:
        """Returns the rows that an evaluation writes summaries for, numbered as in batches."""
        return self._generated(split).rows

    def _generated(self, split: str) -> TokenizedRows:
        rows, wanted = self.dataset(split), self.hparams["num_generated"]
        if split == "test" or wanted is None or wanted >= len(rows):
            return rows
        order = np.random.default_rng(self.hparams["seed"]).permutation(len(rows))
        return rows.select(sorted(order[:wanted].tolist()))

    def _evaluation_loaders(self, split: str) -> list[BucketDataLoader]:
        """Returns loaders of all rows, for the loss, and of those to summarize, if any."""
        parts = [self.dataset(split), self._generated(split)]
        return [self._loader(rows) for rows in parts if len(rows)]

    def _packed_loader(self, rows: TokenizedRows) -> BucketDataLoader:
        """Returns a loader of rows of several articles, and of their summaries, for training."""
        settings = self.hparams
        source_length = settings["pack_length"] or settings["max_source_length"]
        most = settings["max_sequences_per_pack"]
        lengths = np.stack([rows.sources.lengths, rows.targets.lengths], axis=1)
        target_length = fitting_capacity(lengths, source_length, max_samples=most)
        sizes = (source_length, target_length)
        packs = PackDataset(rows, pack_together(lengths.tolist(), sizes, max_samples=most))
        sampler = self.sampler([source_length] * len(packs), [source_length], is_training=True)
        batch_size = self.samples_per_batch(is_training=True)
        num_targets = float(rows.targets.lengths.mean()) * packs.samples_per_pack
        return BucketDataLoader(
            packs,
            sampler,
            partial(
                _collate_packs,
                pad_token=self._tokenizer().pad_token_id,
                target_length=target_length,
                mean_targets=batch_size * num_targets,
            ),
            **self.workers,
        )

    def _loader(self, rows: TokenizedRows, is_training: bool = False) -> BucketDataLoader:
        settings, lengths = self.hparams, rows.sources.lengths
        batch_size = self.samples_per_batch(is_training)
        number, longest = settings["num_buckets"], settings["max_source_length"]
        boundaries = [longest] if number is None else optimal_buckets(lengths, number)
        pad_token = self._tokenizer().pad_token_id
        num_targets = float(rows.targets.lengths.mean())
        if settings["loss_on_padding"]:
            num_targets = settings["max_target_length"]
        sampler = self.sampler(lengths, boundaries, is_training=is_training)
        return BucketDataLoader(
            rows,
            sampler,
            partial(
                _collate,
                pad_token=pad_token,
                pad_label=pad_token if settings["loss_on_padding"] else IGNORED,
                max_target_length=settings["max_target_length"],
                mean_targets=batch_size * num_targets,
            ),
            **self.workers,
        )

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the published vocabulary, that of the checkpoint, or one that is learnt now."""
        if self.tokenizer is None:
            prefix = self.hparams["source_prefix"]
            texts = ([prefix + row.article, row.highlights] for row in self._rows("train"))
            self.tokenizer = train_bpe(texts, self.hparams["vocab_size"])
        return self.tokenizer

    def _rows(self, split: str) -> Iterator[Row]:
        settings = self.hparams
        if settings["source"] == "embedded":
            rows = embedded_rows(settings["packages"], split, settings["seed"])
        else:
            tables = self._open()
            if split not in tables:
                raise UserError(
                    f"data.path={settings['path']} has no {split} split, but only "
                    f"{', '.join(tables)}. Add its file."
                )
            rows = read_rows(tables[split])
        return islice(rows, settings["max_train_samples"]) if split == "train" else rows

    def _open(self) -> dict[str, Table]:
        settings = self.hparams
        self._tables = self._tables or open_tables(
            settings["source"],
            settings["path"],
            FIELDS,
            subset=settings["subset"],
            columns=settings["columns"],
            held_out_share=settings["validation_share"],
            seed=settings["seed"],
        )
        return self._tables

    def _check_rows(self, split: str, rows: TokenizedRows) -> None:
        """Refuses rows that cannot be trained on, and tells how many are left out."""
        source, limit = self.hparams["source"], self.hparams["max_source_length"]
        where = f"data.source={source}, data.path={self.hparams['path']}, split {split}"
        if not len(rows):
            raise UserError(
                f"{where}: there is no row with both an article and a summary "
                f"({rows.num_empty} row(s) lack one of them). Add rows or a file, or set a larger "
                "data.validation_share."
            )
        if rows.sources.num_cut and not self.hparams["truncate_source"]:
            raise UserError(
                f"{where}: {rows.sources.num_cut} article(s) are longer than "
                f"data.max_source_length={limit}. Raise it, or set data.truncate_source=true."
            )
        if rows.num_empty:
            rank_zero_warn(f"{where}: {rows.num_empty} row(s) without text are left out.")


def _check_lengths(max_source_length: int, max_target_length: int) -> None:
    lengths = {"max_source_length": max_source_length, "max_target_length": max_target_length}
    for name, length in lengths.items():
        if length < _MIN_LENGTH:
            raise UserError(
                f"data.{name}={length} leaves no room for text: at least {_MIN_LENGTH}."
            )


def _collate(
    samples: list[dict[str, Any]],
    length: int,
    *,
    pad_token: int,
    pad_label: int,
    max_target_length: int,
    mean_targets: float,
) -> dict[str, Any]:
    """Returns B rows as tensors [B, S] and [B, T], and counts that the host keeps."""
    indices = [sample["index"] for sample in samples]
    texts = [{name: sample[name] for name in ("input_ids", "labels")} for sample in samples]
    batch = pad_batch(
        texts,
        length,
        pad_values={"input_ids": pad_token, "labels": pad_label},
        lengths={"labels": max_target_length},
    )
    num_tokens = sum(len(sample["input_ids"]) for sample in samples)
    counts = {"num_tokens": num_tokens, "num_sequences": len(samples)}
    return {**batch, **counts, "indices": indices, "mean_targets": mean_targets}


def _collate_packs(
    packs: list[list[dict[str, Any]]],
    length: int,
    *,
    pad_token: int,
    target_length: int,
    mean_targets: float,
) -> dict[str, Any]:
    """Returns B rows of articles and summaries, and counts for the host; see `pack_batch`."""
    texts = [[{name: row[name] for name in ("input_ids", "labels")} for row in p] for p in packs]
    batch = pack_batch(
        texts,
        length,
        pad_values={"input_ids": pad_token, "labels": IGNORED},
        lengths={"labels": target_length},
    )
    num_tokens = sum(len(row["input_ids"]) for each in packs for row in each)
    counts = {"num_tokens": num_tokens, "num_sequences": sum(map(len, packs))}
    # T5 uses distances between tokens, and no positions.
    names = ("input_ids", "labels", "sequence_ids", "labels_sequence_ids")
    return {**{name: batch[name] for name in names}, **counts, "mean_targets": mean_targets}
