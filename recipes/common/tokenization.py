"""Trains WordPiece and byte-pair vocabularies, and loads published tokenizers."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lightning_gaudi.untrusted import parse_json
from recipes.common.errors import UserError, first_line
from recipes.common.hub import load_pretrained

BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BLOOM_TOKENS = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
}


@cache
def use_all_cores() -> None:
    """Lets tokenizers use all cores in this process, and a single one in forks of it.

    Their threads do not exist in a fork (tokenizers 0.23): with the variable at "true" a fork that
    tokenizes waits for them forever, and if the variable is not set, each fork warns.
    """
    name = "TOKENIZERS_PARALLELISM"
    os.environ.setdefault(name, "true")
    os.register_at_fork(after_in_child=partial(os.environ.__setitem__, name, "false"))


def train_wordpiece(documents: Iterable[Sequence[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learns a lower-case WordPiece vocabulary of at most `vocab_size` entries, as BERT has.

    The documents are read twice and not kept, since memory may not hold them. The same text gives
    the same vocabulary, in any order. By itself, the trainer numbers the letters that continue a
    word in the order of a hash table, which differs between processes, and breaks ties by these
    numbers. So it is given the letters as special tokens, in order, and the vocabulary is then put
    into a tokenizer in which they are not special.
    """
    if iter(documents) is documents:  # an iterator cannot be read twice
        documents = list(documents)
    tokenizer = _wordpiece({})
    normalize = tokenizer.normalizer.normalize_str
    letters: set[str] = set()
    for sentence in chain.from_iterable(documents):
        letters.update(normalize(sentence))
    letters -= set(string.whitespace)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*BERT_TOKENS.values(), *(f"##{letter}" for letter in sorted(letters))],
        min_frequency=2,
        show_progress=False,
    )
    use_all_cores()
    tokenizer.train_from_iterator(chain.from_iterable(documents), trainer)
    result = _wordpiece(tokenizer.get_vocab())
    sep, cls = (BERT_TOKENS[name] for name in ("sep_token", "cls_token"))
    result.post_processor = processors.BertProcessing(
        (sep, result.token_to_id(sep)), (cls, result.token_to_id(cls))
    )
    return tokenizer_from_json(result.to_str(), BERT_TOKENS)


def _wordpiece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=BERT_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def train_bpe(documents: Iterable[Sequence[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learns a lower-case vocabulary of byte-pair merges, with T5's special tokens and their ids.

    They are <pad> 0, </s> 1, <unk> 2. T5's own vocabulary is a Unigram one, whose trainer gives
    another result in every process, so that the ranks' ids would differ.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=T5_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(T5_TOKENS.values()), show_progress=False
    )
    use_all_cores()
    tokenizer.train_from_iterator(chain.from_iterable(documents), trainer)
    return tokenizer_from_json(tokenizer.to_str(), T5_TOKENS)


def train_byte_bpe(
    documents: Iterable[Sequence[str]],
    vocab_size: int,
    special_tokens: Mapping[str, str] = BLOOM_TOKENS,
    *,
    splits_digits: bool = False,
) -> PreTrainedTokenizerFast:
    """Learns byte-pair merges of bytes, with Bloom's special tokens and their ids, 0 to 3.

    It encodes every text and decodes it as it was, since there is no unknown token.

    Args:
        documents: the texts, in lists.
        vocab_size: entries at most.
        special_tokens: by what transformers calls them; the first ids are theirs.
        splits_digits: each digit is a token, as in Llama 2 and Gemma: numbers are easier to learn.

    Raises:
        UserError: for a vocabulary that has no room for all bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < (least := len(alphabet) + len(special_tokens)):
        raise UserError(
            f"data.vocab_size={vocab_size} has no room for all bytes and special tokens: at least "
            f"{least}."
        )
    tokenizer = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if splits_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, by_bytes]) if digits else by_bytes
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens.values()),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    use_all_cores()
    tokenizer.train_from_iterator(chain.from_iterable(documents), trainer)
    return tokenizer_from_json(tokenizer.to_str(), special_tokens)


def tokenizer_from_json(
    text: str, special_tokens: Mapping[str, str] = BERT_TOKENS
) -> PreTrainedTokenizerFast:
    """Returns the tokenizer whose `backend_tokenizer.to_str()` gave `text`.

    `BertTokenizerFast(vocab_file=...)` would do on transformers 4 and is ignored by 5; this form
    works on both.

    Raises:
        ValueError: it is no JSON, or numbers its tokens otherwise than from 0 on.
    """
    _check_token_ids(text)
    options: dict[str, Any] = dict(special_tokens)
    if "cls_token" in special_tokens:  # BERT distinguishes the two sentences of a pair by type ids
        options["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **options)


def _check_token_ids(text: str) -> None:
    """Refuses a token id that is larger than the number of tokens.

    The library takes memory for all ids up to the largest, and ends the process if it gets none.
    """
    backend = parse_json(text)
    vocab, added = backend["model"]["vocab"], backend["added_tokens"]
    if not isinstance(vocab, dict):
        raise ValueError("its vocabulary has no token ids.")
    limit = len(vocab) + len(added)
    ids = [*vocab.values(), *(each["id"] for each in added)]
    if not all(type(each) is int and 0 <= each < limit for each in ids):
        raise ValueError(f"its {limit} tokens are not numbered from 0 on.")


def tokenizer_state(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Returns what a checkpoint keeps of a tokenizer that was trained here."""
    template = getattr(tokenizer, "chat_template", None)
    return {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special_tokens": dict(tokenizer.special_tokens_map),
        **({"chat_template": template} if template else {}),
    }


def learnt_tokenizer_state(
    tokenizer: PreTrainedTokenizerBase | None, name: str | None
) -> dict[str, Any]:
    """Returns the state of a tokenizer that was learnt; nothing for one that has a name."""
    if name or not isinstance(tokenizer, PreTrainedTokenizerFast):
        return {}
    return tokenizer_state(tokenizer)


def published_tokenizer(name: str, tokenizer: str | None) -> str:
    """Returns the name of the tokenizer that was set beside a published model.

    Args:
        name: the model's.
        tokenizer: as set, or None.

    Raises:
        UserError: there is none.
    """
    if tokenizer is None:
        raise UserError(
            f"model.name={name} knows only its own vocabulary, but data.tokenizer is not set. "
            f"Set data.tokenizer={name}."
        )
    return tokenizer


def check_vocabulary(tokenizer: str, num_tokens: int, model: str, num_rows: int) -> None:
    """Refuses a tokenizer that has more tokens than its model has embeddings.

    Args:
        tokenizer: its name or folder.
        num_tokens: of the tokenizer.
        model: name or folder of the model.
        num_rows: embeddings of the model.

    Raises:
        UserError: saying where a tokenizer that fits is, or how the model's is made to fit.
    """
    if num_tokens <= num_rows:
        return
    remedy = f"Set data.tokenizer={model}."
    if tokenizer == model:
        remedy = (
            "Tokens were added to the tokenizer and not to the model. Give it their embeddings: "
            f"model.resize_token_embeddings({num_tokens}), then model.save_pretrained; or take the "
            "tokenizer as it was."
        )
    raise UserError(
        f"data.tokenizer={tokenizer} has {num_tokens} tokens, but model.name={model} has "
        f"embeddings for {num_rows}. {remedy}"
    )


def tokenizer_from_state(state: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of `tokenizer_state`.

    Raises:
        UserError: it is not a tokenizer's, since the checkpoint is damaged.
    """
    try:
        tokenizer = tokenizer_from_json(state["tokenizer"], state["special_tokens"])
        tokenizer.chat_template = state.get("chat_template")
        return tokenizer
    except Exception as error:  # the library's own type is Exception
        raise UserError(
            f"The tokenizer in the checkpoint cannot be read: {first_line(error)} Name a "
            "checkpoint that `fit` wrote, as it was written."
        ) from error


def load_tokenizer(
    name_or_path: str, needed: Sequence[str] = tuple(BERT_TOKENS), model: str = "BERT"
) -> PreTrainedTokenizerBase:
    """Returns a published tokenizer by name, or one that was saved in a folder.

    Args:
        name_or_path: `data.tokenizer`.
        needed: the special tokens that it must have, `pad_token` for example.
        model: what they are needed for, in the message.

    Raises:
        UserError: if there is no such tokenizer, or it lacks one of the tokens.
    """
    tokenizer = load_pretrained(AutoTokenizer, "data.tokenizer", name_or_path)
    missing = [name for name in needed if getattr(tokenizer, name, None) is None]
    if missing:
        raise UserError(
            f"data.tokenizer={name_or_path} has no {', '.join(missing)}: it is not a tokenizer "
            f"for {model}. Name one that is, or leave it out to train one on the text."
        )
    return tokenizer
