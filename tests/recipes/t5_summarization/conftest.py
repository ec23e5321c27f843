from pathlib import Path

import pytest
from lightning.pytorch import seed_everything
from transformers import T5Config, T5ForConditionalGeneration

from recipes.common.reader import open_tables
from recipes.common.tokenization import train_bpe
from recipes.t5_summarization.corpora import FIELDS, read_rows
from recipes.t5_summarization.data import SummarizationData

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cnn_dailymail"
VOCABULARY = 300


@pytest.fixture
def make_data():
    """Builds the data of a small run on the fixtures; keyword arguments override it."""

    def make(**settings) -> SummarizationData:
        small = {
            "source": "path",
            "path": str(FIXTURES),
            "vocab_size": VOCABULARY,
            "batch_size": 4,
            "max_source_length": 160,
            "max_target_length": 24,
            "num_buckets": 2,
        }
        return SummarizationData(**(small | settings))

    return make


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> str:
    """A folder with a tiny T5 and its tokenizer, as `save_pretrained` writes them."""
    folder = tmp_path_factory.mktemp("tiny-t5")
    rows = rows_of(FIXTURES)
    train_bpe(([row.article] for row in rows), VOCABULARY).save_pretrained(folder)
    seed_everything(0, verbose=False)
    tiny_t5(vocab_size=VOCABULARY + 12).save_pretrained(folder)
    return str(folder)


def rows_of(path, split="train"):
    """The rows of a split, as the recipe reads them."""
    return list(read_rows(open_tables("path", str(path), FIELDS)[split]))


def tiny_t5(**settings) -> T5ForConditionalGeneration:
    """A random T5 whose attention is sharp, so that its summaries are no mere repetition."""
    small = {
        "vocab_size": 60,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 3,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "attn_implementation": "eager",
    }
    model = T5ForConditionalGeneration(T5Config(**(small | settings)))
    model.shared.weight.data.mul_(0.1)
    for name, weight in model.named_parameters():
        if ".q." in name or "relative_attention_bias" in name:
            weight.data.mul_(6)
    return model
