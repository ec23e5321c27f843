"""Has the DataModule, which packs conversations, preferences or texts into rows of one shape.

Shapes: B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import (
    BucketDataLoader,
    PackDataset,
    embedded_documents,
    pack,
    pack_batch,
)
from recipes.common.data import PromptData, embedded_texts
from recipes.common.errors import UserError, first_line
from recipes.common.prompts import Prompt, encode_prompts, given_prompts
from recipes.common.reader import Table
from recipes.common.tokenization import (
    learnt_tokenizer_state,
    load_tokenizer,
    tokenizer_from_state,
    train_byte_bpe,
)
from recipes.llm_finetuning.conversations import (
    Conversation,
    Message,
    Objective,
    PromptFormat,
    formatted,
    open_conversations,
    read_conversations,
    read_documents,
    read_preferences,
)
from recipes.llm_finetuning.embedded import embedded_conversations, embedded_preferences
from recipes.llm_finetuning.encoding import (
    CHATML,
    IGNORED,
    Cut,
    EncodedRows,
    Template,
    encode_conversations,
    encode_documents,
)

Source = Literal["embedded", "path", "hub"]
CHAT_TOKENS = {
    "unk_token": "<unk>",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<pad>",
}
"""The special tokens of a vocabulary that is learnt here; their ids are 0 to 3, in this order."""
_TEMPLATES = {"chatml": CHATML, "none": None}
_MIN_LENGTH = 8


class LlmData(PromptData):
    """Gives conversations or preferences, to learn answers from, or texts, to learn as a whole.

    Args:
        objective: sft (answers of conversations), dpo (which of two answers is the better one) or
            pretrain (whole texts).
        source: embedded (needs no download: conversations that are made by rules; for pretrain the
            documentation of Python and `packages`), path (files) or hub (a data set by name).
        path: a file, several, or a folder of them (see `common/reader.py`), or the data set's name.
        subset: configuration of a data set from the hub, or a folder in it, as data/finetune.
        columns: your names of the columns: messages; or prompt, completion and, if there are any,
            input and system; or, for dpo, prompt, chosen and rejected; or, for pretrain, text.
            Those of Alpaca, Dolly and GSM8K are known.
        packages: installed packages whose documentation is read besides that of Python.
        validation_share: share of the training rows that is held out for validation if there is no
            file for it, and likewise for test.
        tokenizer: name or folder of the model's published tokenizer; None learns byte-pair merges
            from the embedded documentation, or from the training rows.
        chat_template: how a conversation is written: null (the tokenizer's template), chatml, a
            file with a template, or none (a question and its answer, one after the other).
        prompt_format: how a prompt and its input are joined, in rows without messages: plain (one
            after the other), alpaca (as the instructions of Stanford Alpaca) or question (between
            "Question:" and "Answer:").
        learns_questions: whether questions are learnt, too, and not answers alone.
        concatenated: joins all rows and cuts them to `pack_length`, as many programs do; documents
            then see each other, and may be cut anywhere. False keeps them whole and apart.
        vocab_size: size of a vocabulary that is learnt, and of a new model.
        max_length: tokens of the longest row; a longer one is cut so that an answer is left. If
            rows are `concatenated`, none is cut.
        pack_length: tokens of a packed row (T); None for max_length, or for twice as many with
            dpo, where a pair has two answers.
        max_sequences_per_pack: rows that are packed into one, where they do not see each other;
            None for as many as fit, 1 to pack none.
        buckets: lengths, with max_sequences_per_pack=1: each row is padded to the smallest that
            holds it. Each is compiled once. None pads all rows to one length.
        batch_size: packed rows of a batch, or prompts, on each card (B).
        eval_batch_size: likewise, in validation, test and prediction; None for batch_size.
        prompts: questions for `predict`; None for those of the test split, whose answers are then
            compared with the expected ones.
        prompts_file: a text file with one question a line.
        max_prompts: the largest number of prompts; None for all.
        prompt_buckets: lengths that prompts are padded to, on their left; each is compiled once.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: the seed of the order of rows, and of the choice of held-out rows.

    Raises:
        UserError: Rows or a tokenizer cannot be read or do not suit each other. The error comes
            before a card is acquired.
    """

    def __init__(
        self,
        objective: Objective = "sft",
        source: Source = "embedded",
        path: list[str] | str | None = None,
        subset: str | None = None,
        columns: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
        validation_share: float = 0.05,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        prompt_format: PromptFormat = "plain",
        learns_questions: bool = False,
        concatenated: bool = False,
        vocab_size: int = 1024,
        max_length: int = 128,
        pack_length: int | None = None,
        max_sequences_per_pack: int | None = None,
        buckets: Sequence[int] | None = None,
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        prompts: list[str] | None = None,
        prompts_file: str | None = None,
        max_prompts: int | None = None,
        prompt_buckets: Sequence[int] = (32, 64),
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.samples_per_batch(is_training=False)
        self._check_lengths()
        _check_source(source, path, columns)
        self._tables: dict[str, Table] = {}
        if source == "path":
            for table in self._open().values():
                table.check()
        given_prompts(prompts, prompts_file)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        if tokenizer:
            self.tokenizer = load_tokenizer(tokenizer, ("eos_token",), "language models")
            if not self.tokenizer.is_fast:
                raise UserError(
                    f"data.tokenizer={tokenizer} does not tell which characters a token stands "
                    "for, and the labels need that. Name one with a tokenizer.json."
                )
            self._set_template(self.tokenizer)
        self._rows: dict[str, EncodedRows] = {}
        self._prompts: list[Prompt] | None = None
        self._asked: list[Conversation] = []

    @property
    def origin(self) -> str:
        """The source of the rows, for messages and reports."""
        if self.hparams["source"] == "embedded":
            is_text = self.hparams["objective"] == "pretrain"
            return "documentation of Python" if is_text else "made by rules (embedded)"
        return f"from {self.hparams['path']}"

    def prepare_data(self) -> None:
        """Fills the cache of the embedded text, or of the hub, once a machine."""
        if self.hparams["source"] == "embedded":
            embedded_documents(self.hparams["packages"])
        elif self.hparams["source"] == "hub":
            self._open()

    def read(self, command: str) -> None:
        """Reads the rows that a fit trains with, if they are files, before a card is acquired."""
        # A learnt vocabulary may yet come with a checkpoint; the hub is asked in `prepare_data`.
        if command == "fit" and self.hparams["source"] == "path" and self.hparams["tokenizer"]:
            self.rows("train")

    def rows(self, split: str) -> EncodedRows:
        """Returns the rows of a split, which are read and encoded at the first call.

        Raises:
            UserError: The split has no rows, or one that is no conversation.
        """
        if split not in self._rows:
            # Rows that are concatenated are cut after that, to `pack_length`.
            is_cut_later = self.hparams["concatenated"]
            limit = sys.maxsize if is_cut_later else self.hparams["max_length"]
            tokenizer = self.get_tokenizer()
            is_text = self.hparams["objective"] == "pretrain"
            if is_text:
                rows, cut = encode_documents(self._texts(split), tokenizer, limit), Cut()
            else:
                rows, cut = encode_conversations(
                    self._learnt(split),
                    tokenizer,
                    limit,
                    learns_questions=self.hparams["learns_questions"],
                    together=self._num_together,
                )
            if self.hparams["concatenated"]:
                is_all_learnt = self.hparams["learns_questions"] or is_text
                rows = rows.concatenated(self.row_length, is_all_learnt=is_all_learnt)
            if not len(rows):
                raise UserError(
                    f"data.path={self.hparams['path']}: the {split} split has no row. Add rows or "
                    "a file, or set a larger data.validation_share."
                )
            if cut.num_rows:
                rank_zero_warn(
                    f"{cut.num_rows} of {len(rows)} rows ({split}) have more than "
                    f"data.max_length={limit} tokens and are cut, {cut.num_at_start} of them at "
                    "their beginning, to keep an answer."
                )
            self._rows[split] = rows
        return self._rows[split]

    def train_dataloader(self) -> BucketDataLoader:
        return self.resumed(self._loader("train"))

    def val_dataloader(self) -> BucketDataLoader:
        return self._loader("validation")

    def test_dataloader(self) -> BucketDataLoader:
        return self._loader("test")

    def read_prompts(self) -> list[Prompt]:
        """Returns the questions, in the order of the numbers by which batches refer to them.

        Raises:
            UserError: There is no question, or one is longer than the largest bucket.
        """
        if self._prompts is None:
            settings, template = self.hparams, Template(self.get_tokenizer())
            self._asked = self._questions()
            self._prompts = encode_prompts(
                [template.prompt(each) for each in self._asked],
                self.get_tokenizer(),
                place="data.prompts" if settings["prompts"] else f"the test split, {self.origin}",
                num_tokens=None,
                longest=max(settings["prompt_buckets"]),
                has_special_tokens=True,
            )
        return self._prompts

    def asked(self) -> list[Conversation]:
        """Returns the questions with their expected answers, in the order of the prompts."""
        self.read_prompts()
        return self._asked

    def unigram_loss(self, split: str) -> float:
        """Returns the mean loss of a unigram model: it knows the tokens' frequencies alone."""
        num_tokens = len(self.get_tokenizer())
        counts = np.bincount(self.rows("train").learnt, minlength=num_tokens) + 1.0
        return float(-np.log(counts / counts.sum())[self.rows(split).learnt].mean())

    def num_judged(self, split: str) -> int:
        """Returns the number of tokens of a split that have labels."""
        return len(self.rows(split).learnt)

    @property
    def row_length(self) -> int:
        """Tokens of a row of a batch (T); if there are several buckets, of the longest row."""
        settings = self.hparams
        if settings["buckets"]:
            return int(max(settings["buckets"]))
        return int(settings["pack_length"] or self._num_together * settings["max_length"])

    @property
    def _num_together(self) -> int:
        """The number of encoded rows that stay together: the two answers of a preference."""
        return 2 if self.hparams["objective"] == "dpo" else 1

    @property
    def are_rows_shared(self) -> bool:
        """Whether a row of a batch may hold several documents, as the answers of a preference."""
        settings = self.hparams
        return settings["max_sequences_per_pack"] != 1 or settings["objective"] == "dpo"

    @property
    def pad_token_id(self) -> int:
        """The token that pads rows; any one will do, since none attends to it or learns it."""
        tokenizer = self.get_tokenizer()
        own = tokenizer.pad_token_id
        return int(tokenizer.eos_token_id if own is None else own)

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the published tokenizer, the checkpoint's, or one that is learnt at this call."""
        if self.tokenizer is None:
            settings = self.hparams
            if settings["source"] == "embedded":
                texts = embedded_texts(
                    settings["packages"], "train", settings["validation_share"], settings["seed"]
                )
            elif settings["objective"] == "pretrain":
                texts = self._texts("train")
            else:
                texts = [m.content for row in self._conversations("train") for m in row.messages]
            self.tokenizer = train_byte_bpe(
                [texts], settings["vocab_size"], CHAT_TOKENS, splits_digits=True
            )
            self.tokenizer.chat_template = CHATML
            self._set_template(self.tokenizer)
        return self.tokenizer

    def state_dict(self) -> dict[str, Any]:
        """Adds a learnt vocabulary, without which the weights in the checkpoint are useless."""
        named = self.hparams["tokenizer"]
        return super().state_dict() | learnt_tokenizer_state(self.tokenizer, named)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the vocabulary that the checkpoint was trained with, and the place in epoch."""
        super().load_state_dict(state_dict)
        if not self.hparams["tokenizer"] and "tokenizer" in state_dict:
            self.tokenizer = tokenizer_from_state(state_dict)
            self._rows, self._prompts = {}, None

    def _check_lengths(self) -> None:
        settings = self.hparams
        longest, shared = settings["max_length"], settings["pack_length"]
        if longest < _MIN_LENGTH:
            raise UserError(
                f"data.max_length={longest} leaves no room for an answer. Set {_MIN_LENGTH} at "
                "least."
            )
        is_dpo = settings["objective"] == "dpo"
        if shared is not None and shared < longest * (2 if is_dpo else 1):
            what = "two answers" if is_dpo else "a row"
            raise UserError(
                f"data.pack_length={shared} does not hold {what} of data.max_length={longest} "
                "tokens. Raise the first, or lower the second."
            )
        if settings["objective"] != "sft" and settings["learns_questions"]:
            raise UserError(
                "data.learns_questions=true is for data.objective=sft. Leave it out with "
                f"data.objective={settings['objective']}."
            )
        if is_dpo and settings["concatenated"]:
            raise UserError(
                "data.concatenated=true cuts rows anywhere, and data.objective=dpo compares whole "
                "answers. Leave it out."
            )
        most, share = settings["max_sequences_per_pack"], settings["validation_share"]
        if most is not None and most < 1:
            raise UserError(
                f"data.max_sequences_per_pack={most} leaves rows empty. Set 1 to give each "
                "document a row of its own, or null to pack as many as fit."
            )
        if settings["buckets"] is not None:
            self._check_buckets()
        if not 0 < share < 0.5:
            raise UserError(f"data.validation_share={share} is not between 0 and 0.5.")
        buckets = settings["prompt_buckets"]
        if not buckets or min(buckets) < 1:
            raise UserError(
                f"data.prompt_buckets={list(buckets)} must be one or more lengths, such as [64]."
            )

    def _check_buckets(self) -> None:
        settings, buckets = self.hparams, list(self.hparams["buckets"])
        if self.are_rows_shared or settings["concatenated"] or settings["pack_length"]:
            raise UserError(
                f"data.buckets={buckets} is for rows of one document each. Set "
                "data.max_sequences_per_pack=1, and leave out data.pack_length, data.concatenated "
                "and data.objective=dpo; or leave data.buckets out."
            )
        longest = settings["max_length"]
        if not buckets or buckets != sorted({*buckets}) or buckets[0] < 1 or buckets[-1] < longest:
            raise UserError(
                f"data.buckets={buckets} must ascend, and the last one must hold "
                f"data.max_length={longest} tokens: [{longest // 2}, {longest}], for instance."
            )

    def _set_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        given = self.hparams["chat_template"]
        if given is None:
            return
        if given in _TEMPLATES:
            tokenizer.chat_template = _TEMPLATES[given]
            return
        path = Path(given).expanduser()
        if not path.is_file():
            raise UserError(
                f"data.chat_template={given} is neither a file nor one of {', '.join(_TEMPLATES)}. "
                "Name a file with a Jinja template, or leave it out to use the tokenizer's own."
            )
        try:
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"data.chat_template={given} cannot be read: {first_line(error)} Name a file in "
                "UTF-8 with a Jinja template."
            ) from error

    def _open(self) -> dict[str, Table]:
        settings = self.hparams
        self._tables = self._tables or open_conversations(
            settings["source"],
            settings["path"],
            objective=settings["objective"],
            subset=settings["subset"],
            columns=settings["columns"],
            held_out_share=settings["validation_share"],
            seed=settings["seed"],
        )
        return self._tables

    def _table(self, split: str) -> Table:
        tables = self._open()
        if split not in tables:
            raise UserError(
                f"data.path={self.hparams['path']} has no {split} split, but only "
                f"{', '.join(tables)}. Add a file for it."
            )
        return tables[split]

    def _texts(self, split: str) -> list[str]:
        settings = self.hparams
        if settings["source"] == "embedded":
            share, seed = settings["validation_share"], settings["seed"]
            return embedded_texts(settings["packages"], split, share, seed)
        return list(read_documents(self._table(split)))

    def _conversations(self, split: str) -> list[Conversation]:
        if self.hparams["source"] == "embedded":
            return embedded_conversations(split, self.hparams["seed"])
        return list(read_conversations(self._table(split), self.hparams["prompt_format"]))

    def _learnt(self, split: str) -> Iterable[Conversation]:
        """Returns the conversations of a split; of preferences, chosen and rejected alternate."""
        if self.hparams["objective"] != "dpo":
            return self._conversations(split)
        if self.hparams["source"] == "embedded":
            pairs = embedded_preferences(split, self.hparams["seed"])
        else:
            pairs = list(read_preferences(self._table(split), self.hparams["prompt_format"]))
        return chain.from_iterable(pairs)

    def _questions(self) -> list[Conversation]:
        settings = self.hparams
        given = given_prompts(settings["prompts"], settings["prompts_file"])
        if given is not None:
            blank = Message("assistant", "")
            texts = (formatted(text, "", settings["prompt_format"]) for text in given)
            return [Conversation((Message("user", text), blank)) for text in texts]
        if settings["objective"] == "pretrain":
            raise UserError(
                "data.objective=pretrain has no questions for `predict`. Give some with "
                "--data.prompts '[\"...\"]', or set data.objective=sft."
            )
        if settings["objective"] == "dpo" and settings["source"] != "embedded":
            kind = settings["prompt_format"]
            rows = [chosen for chosen, _ in read_preferences(self._table("test"), kind)]
        else:
            rows = self._conversations("test")
        return rows[: settings["max_prompts"]]

    def _loader(self, split: str) -> BucketDataLoader:
        settings, rows = self.hparams, self.rows(split)
        length = self.row_length
        most, is_training = settings["max_sequences_per_pack"], split == "train"
        together = self._num_together
        # The answers of a preference are packed as one item, so that no pair is torn apart.
        lengths = rows.lengths.reshape(-1, together).sum(1).tolist()
        found = [
            [together * number + part for number in each for part in range(together)]
            for each in pack(lengths, length, max_sequences=most)
        ]
        packs = PackDataset(rows, found)
        batch_size = self.samples_per_batch(is_training=is_training)
        sizes = np.full(len(packs), length)
        if settings["buckets"]:
            sizes = rows.lengths[[number for [number] in found]]
        sampler = self.sampler(sizes, settings["buckets"] or [length], is_training=is_training)
        num_learnt = len(rows.learnt) if together == 1 else len(rows) / together
        counts: dict[str, float] = {"mean_learnt": batch_size * num_learnt / len(packs)}
        if together > 1:
            counts["max_documents"] = max(map(len, found))
        collate = partial(_collate, pad_token=self.pad_token_id, counts=counts)
        return BucketDataLoader(packs, sampler, collate, **self.workers)


def _check_source(source: Source, path: Any, columns: Mapping[str, str] | None) -> None:
    if source == "embedded" and (path is not None or columns):
        name = "data.path" if path is not None else "data.columns"
        raise UserError(
            f"{name} is set, but data.source=embedded makes its own rows. Set data.source=path for "
            "files, or data.source=hub for a data set of the hub."
        )
    if source != "embedded" and path is None:
        wanted = "a file, or a folder of them." if source == "path" else "tatsu-lab/alpaca."
        raise UserError(f"data.source={source} needs data.path: {wanted}")


def _collate(
    packs: list[list[dict[str, Any]]], length: int, pad_token: int, counts: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the tensors [B, T] of `pack_batch`, and numbers that stay on the host.

    Args:
        packs: the rows that are packed together, for each row of the batch.
        length: the number of tokens of a packed row (T).
        pad_token: the token that pads rows.
        counts: numbers that are the same for all batches: `mean_learnt`, how many tokens, or
            preferences, of a batch are learnt on average; and, of preferences, `max_documents`,
            how many answers a row may have.
    """
    pad_values = {"input_ids": pad_token, "labels": IGNORED}
    batch = pack_batch(packs, length, pad_values=pad_values)
    num_tokens = sum(len(row["input_ids"]) for rows in packs for row in rows)
    of_batch = {"num_tokens": num_tokens, "num_sequences": sum(map(len, packs))}
    return {**batch, **of_batch, **counts}
