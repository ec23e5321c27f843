"""Refuses settings that cannot work, before anything is started."""

from __future__ import annotations

import math

from transformers import PreTrainedTokenizerBase

from recipes.bert_pretraining.rows import RowShape
from recipes.bert_pretraining.sequences import num_special_tokens
from recipes.common.errors import UserError

_MIN_VOCAB_SIZE = 8  # five special tokens, and letters


def check_sizes(
    max_seq_length: int, max_predictions: int, validation_share: float, next_sentence: bool
) -> None:
    """Refuses sizes of a row that do not fit together.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if max_seq_length <= num_special_tokens(next_sentence) + 4:
        raise UserError(f"data.max_seq_length={max_seq_length} leaves no room for text.")
    wanted = math.ceil(RowShape.mlm_probability * (max_seq_length - 2))
    if max_predictions < wanted:
        raise UserError(
            f"data.max_predictions_per_seq={max_predictions} is too small: 15 % of "
            f"data.max_seq_length={max_seq_length} tokens are predicted, so set at least {wanted}."
        )
    if not 0 < validation_share < 0.5:
        raise UserError(f"data.validation_share={validation_share} is not between 0 and 0.5.")


def check_documents(
    documents: str, truncate_documents: bool, next_sentence: bool, max_sequences: int
) -> None:
    """Refuses settings that rows of concatenated documents, or of separate ones, cannot have.

    Raises:
        UserError: naming the setting as it is typed.
    """
    if documents == "concatenated":
        if next_sentence:
            raise UserError(
                "data.documents=concatenated cuts rows anywhere, so there are no sentence pairs. "
                "Set data.next_sentence=false, or data.documents=separate."
            )
        if max_sequences != 1:
            raise UserError(
                f"data.max_sequences_per_pack={max_sequences}, but with data.documents="
                "concatenated a row is one sequence, and full. Set data.max_sequences_per_pack=1."
            )
    elif truncate_documents:
        raise UserError(
            "data.truncate_documents=true needs data.documents=concatenated: separate documents "
            "are cut into as many pieces as they fill."
        )


def check_counts(vocab_size: int, batch_size: int, max_sequences: int, num_workers: int) -> None:
    """Refuses numbers that are too small.

    Raises:
        UserError: naming the setting as it is typed.
    """
    lowest = {
        "vocab_size": (vocab_size, _MIN_VOCAB_SIZE),
        "batch_size": (batch_size, 1),
        "max_sequences_per_pack": (max_sequences, 1),
        "num_workers": (num_workers, 0),
    }
    for name, (value, limit) in lowest.items():
        if value < limit:
            raise UserError(f"data.{name}={value} must be at least {limit}.")


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Refuses a tokenizer with more tokens than the model has embeddings.

    Raises:
        UserError: saying how many it needs.
    """
    if len(tokenizer) > vocab_size:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, but data.vocab_size is {vocab_size}: the "
            "model would have no embedding for the others. Set "
            f"data.vocab_size={len(tokenizer)}."
        )
