"""Has the DataModule: text in blocks of one length, and prompts in batches of a few shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import (
    BucketDataLoader,
    embedded_documents,
    pad_batch,
)
from recipes.common.data import PromptData, embedded_texts
from recipes.common.errors import UserError
from recipes.common.prompts import Prompt, encode_prompts, given_prompts
from recipes.common.reader import open_tables
from recipes.common.tokenization import (
    learnt_tokenizer_state,
    load_tokenizer,
    tokenizer_from_state,
    train_byte_bpe,
)
from recipes.text_generation.blocks import Blocks, to_stream
from recipes.text_generation.documents import (
    FIELDS,
    Source,
    check_source,
    prompt_rows,
    table_texts,
)
from recipes.text_generation.ngrams import Bigrams
from recipes.text_generation.prompts import beginnings, texts_of

_PROMPT_TOKENS, _MAX_PROMPTS = 12, 8
"""Of the embedded prompts, where nothing else is asked for."""


class TextData(PromptData):
    """Reads text to learn from and to be judged on, and prompts to go on from.

    Prompts are `prompts`, or the lines of `prompts_file`, or else the beginnings of texts: of the
    data set, or of the embedded text that is held out for the test.

    Args:
        source: embedded (the documentation of Python and `packages`, on every machine), path
            (files) or hub (a data set by name).
        path: a file, several, or a folder of them (see `common/reader.py`), or the data set's name.
        subset: configuration of a data set from the hub.
        columns: your name of the column `text`: a document in each row.
        packages: installed packages whose documentation is read besides that of Python.
        validation_share: of the training documents, held out for validation where there is no file
            for it, and likewise for test.
        tokenizer: name or folder of a published tokenizer, that of the model; None learns byte-pair
            merges from the training text.
        pad_token: what fills up shorter prompts, for a tokenizer without padding.
        vocab_size: of a vocabulary that is learnt, and of a model that starts from nothing.
        block_size: tokens that are predicted at once in training (T), and judged in evaluation.
        batch_size: blocks, or prompts, of a batch, on each card (B).
        eval_batch_size: likewise, in validation, test and prediction; None for as many.
        prompts: what `predict` goes on from.
        prompts_file: a text file with one prompt a line.
        prompt_tokens: cut prompts to their first tokens; None: those of embedded text to 12.
        max_prompts: take no more; None: 8 of the embedded text, else all.
        prompt_buckets: lengths that prompts are padded to, on their left; each is compiled once.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        seed: of the order, and of what is held out.

    Raises:
        UserError: for text, prompts or a tokenizer that cannot be had or do not fit, here already:
            before a card is acquired.
    """

    def __init__(
        self,
        source: Source = "embedded",
        path: list[str] | str | None = None,
        subset: str | None = None,
        columns: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
        validation_share: float = 0.05,
        tokenizer: str | None = None,
        pad_token: str | None = None,
        vocab_size: int = 1024,
        block_size: int = 64,
        batch_size: int = 16,
        eval_batch_size: int | None = None,
        prompts: list[str] | None = None,
        prompts_file: str | None = None,
        prompt_tokens: int | None = None,
        max_prompts: int | None = None,
        prompt_buckets: Sequence[int] = (16, 32, 64, 128),
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.samples_per_batch(is_training=False)
        if not 0 < validation_share < 0.5:
            raise UserError(f"data.validation_share={validation_share} is not between 0 and 0.5.")
        _check_sizes(block_size, prompt_tokens, prompt_buckets)
        check_source(source, path, columns)
        if max_prompts is not None and max_prompts < 1:
            raise UserError(f"data.max_prompts={max_prompts} leaves no prompt: set 1 or more.")
        given_prompts(prompts, prompts_file)
        self.tokenizer: PreTrainedTokenizerBase | None = None
        if tokenizer is not None:
            self.tokenizer = load_tokenizer(tokenizer, ("eos_token",), "text generation")
            set_padding(self.tokenizer, tokenizer, pad_token)
        self._streams: dict[str, np.ndarray] = {}
        self._baselines: dict[str, dict[str, float]] = {}
        self._prompts: list[Prompt] | None = None

    @property
    def origin(self) -> str:
        """Returns in words where the text is from."""
        if self.hparams["source"] == "embedded":
            names = ", ".join(("Python", *self.hparams["packages"]))
            return f"documentation of {names} (embedded)"
        return f"text of {self.hparams['path']}"

    def prepare_data(self) -> None:
        """Fills the cache of the embedded text, or of the hub, once a machine."""
        if self.hparams["source"] == "embedded":
            embedded_documents(self.hparams["packages"])
        elif self.hparams["source"] == "hub":
            prompt_rows("hub", *self._place())

    def train_dataloader(self) -> BucketDataLoader:
        return self.resumed(self._loader("train"))

    def val_dataloader(self) -> BucketDataLoader:
        return self._loader("validation")

    def test_dataloader(self) -> BucketDataLoader:
        return self._loader("test")

    def read_prompts(self) -> list[Prompt]:
        """Returns the prompts, in order; their numbers are those of the batches.

        Raises:
            UserError: if there is none, or one is longer than the largest bucket.
        """
        if self._prompts is None:
            self._prompts = self._read_prompts()
        return self._prompts

    def baselines(self, split: str) -> dict[str, float]:
        """Returns, by name, perplexities to beat on the tokens that the model is judged on."""
        if split not in self._baselines:
            judged = Blocks(self._stream(split), self.hparams["block_size"]).predicted
            bigrams = Bigrams(self._stream("train"), len(self.get_tokenizer()))
            self._baselines[split] = {
                "interpolated bigram": bigrams.perplexity(judged),
                "unigram": bigrams.unigram_perplexity(judged),
            }
        return self._baselines[split]

    def num_judged(self, split: str) -> int:
        """Returns tokens of a split that are predicted."""
        return len(Blocks(self._stream(split), self.hparams["block_size"]).predicted) - 1

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the published vocabulary, that of the checkpoint, or one that is learnt now."""
        if self.tokenizer is None:
            texts = self._texts("train")
            self.tokenizer = train_byte_bpe([texts], self.hparams["vocab_size"])
        return self.tokenizer

    def state_dict(self) -> dict[str, Any]:
        """Puts a learnt vocabulary into the checkpoint, since its weights need just that one."""
        named = self.hparams["tokenizer"]
        return super().state_dict() | learnt_tokenizer_state(self.tokenizer, named)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the vocabulary that the checkpoint was trained with, and its place in the epoch."""
        super().load_state_dict(state_dict)
        if not self.hparams["tokenizer"] and "tokenizer" in state_dict:
            self.tokenizer = tokenizer_from_state(state_dict)
            self._streams, self._baselines, self._prompts = {}, {}, None

    def _place(self) -> tuple[Any, Any, Any]:
        return tuple(self.hparams[name] for name in ("path", "subset", "columns"))

    def _texts(self, split: str) -> list[str]:
        settings = self.hparams
        share, seed = settings["validation_share"], settings["seed"]
        if settings["source"] == "embedded":
            return embedded_texts(settings["packages"], split, share, seed)
        path, subset, columns = self._place()
        tables = open_tables(
            settings["source"],
            path,
            FIELDS,
            subset=subset,
            columns=columns,
            held_out_share=share,
            seed=seed,
        )
        return table_texts(tables, split, path)

    def _stream(self, split: str) -> np.ndarray:
        if split not in self._streams:
            tokenizer, size = self.get_tokenizer(), self.hparams["block_size"]
            stream = self._streams[split] = to_stream(self._texts(split), tokenizer)
            if not len(Blocks(stream, size)):
                raise UserError(
                    f"The {split} text, {self.origin}, has {len(stream)} tokens, fewer than a "
                    f"block. Add text, or set data.block_size={len(stream) // 2} or less."
                )
        return self._streams[split]

    def _loader(self, split: str) -> BucketDataLoader:
        size = self.hparams["block_size"]
        dataset = Blocks(self._stream(split), size)
        lengths = np.full(len(dataset), size)
        sampler = self.sampler(lengths, [size], is_training=split == "train")
        return BucketDataLoader(dataset, sampler, _collate, **self.workers)

    def _read_prompts(self) -> list[Prompt]:
        settings, tokenizer = self.hparams, self.get_tokenizer()
        num_tokens, max_prompts = settings["prompt_tokens"], settings["max_prompts"]
        texts = given_prompts(settings["prompts"], settings["prompts_file"])
        if texts is not None:
            file = settings["prompts_file"]
            place = f"data.prompts_file={file}" if file else "data.prompts"
        elif settings["source"] == "embedded":
            return self._embedded_prompts()
        else:
            split, rows = prompt_rows(settings["source"], *self._place())
            place = f"data.path={settings['path']}, split {split}"
            texts = texts_of(rows, place, max_prompts)
        longest = max(settings["prompt_buckets"])
        return encode_prompts(
            texts[:max_prompts], tokenizer, place=place, num_tokens=num_tokens, longest=longest
        )

    def _embedded_prompts(self) -> list[Prompt]:
        settings = self.hparams
        num_tokens = settings["prompt_tokens"] or _PROMPT_TOKENS
        if num_tokens > (longest := max(settings["prompt_buckets"])):
            raise UserError(
                f"data.prompt_tokens={num_tokens} is more than the {longest} tokens of the largest "
                "bucket. Add a larger one to data.prompt_buckets."
            )
        number, texts = settings["max_prompts"] or _MAX_PROMPTS, self._texts("test")
        if found := beginnings(texts, self.get_tokenizer(), num_tokens, number):
            return found
        raise UserError(
            f"No held-out text has the {2 * num_tokens} tokens that a beginning of "
            f"data.prompt_tokens={num_tokens} and what follows take. Set fewer."
        )


def set_padding(
    tokenizer: PreTrainedTokenizerBase, name: str, pad_token: str | None
) -> PreTrainedTokenizerBase:
    """Gives a tokenizer without padding the token that the user names.

    It is never seen: attention leaves out what fills up. So any token will do.

    Raises:
        UserError: if there is no padding token, or no such token.
    """
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise UserError(
                f"data.pad_token={pad_token} is no token of data.tokenizer={name}. Name one that "
                f"is, such as its end of sequence: data.pad_token={tokenizer.eos_token}"
            )
        tokenizer.pad_token = pad_token
    if tokenizer.pad_token is None:
        raise UserError(
            f"data.tokenizer={name} has no padding token, which shorter prompts are filled up "
            "with. Name any of its tokens, such as its end of sequence: "
            f"data.pad_token={tokenizer.eos_token}"
        )
    return tokenizer


def _check_sizes(block_size: int, prompt_tokens: int | None, buckets: Sequence[int]) -> None:
    if block_size < 2:
        raise UserError(
            f"data.block_size={block_size} leaves no context to learn from: at least 2."
        )
    if prompt_tokens is not None and prompt_tokens < 1:
        raise UserError(f"data.prompt_tokens={prompt_tokens} leaves no prompt: set 1 or more.")
    if not buckets or min(buckets) < 1 or len(set(buckets)) < len(buckets):
        raise UserError(
            f"data.prompt_buckets={list(buckets)} must be different lengths of 1 or more, such as "
            "[16, 64]."
        )


def _collate(samples: list[dict[str, Any]], length: int) -> dict[str, Any]:
    """Returns tensors [B, T]; counts, which the host knows, are for TokenThroughput."""
    return {**pad_batch(samples, length), "num_tokens": len(samples) * length}
