"""A tokenizer that is made here, since trl wants one even for data that are tokens."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One word for each token id; the first is the end and the padding."""
    words = {f"w{i}": i for i in range(vocabulary)}
    split = Tokenizer(WordLevel(words, unk_token="w1"))
    split.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=split,
        eos_token="w0",
        pad_token="w0",
        unk_token="w1",
    )
