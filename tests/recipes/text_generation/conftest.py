from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything
from transformers import BloomConfig, BloomForCausalLM

from recipes.common.tokenization import train_byte_bpe
from recipes.text_generation.data import TextData

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cnn_dailymail"
COLUMNS = {"text": "article"}
VOCABULARY = 320
PROMPTS = [
    "The river",
    "A silver letter builds the broken window of a house",
    "If",
    "The quick engine follows",
    "Nobody knows what",
]
"""Of several lengths: two buckets, and batches that they do not fill."""


def small_data(**settings) -> TextData:
    """The data of a small run on the fixtures; keyword arguments override it."""
    small = {
        "source": "path",
        "path": str(FIXTURES),
        "columns": COLUMNS,
        "vocab_size": VOCABULARY,
        "block_size": 16,
        "batch_size": 4,
        "prompt_buckets": [8, 32],
    }
    return TextData(**(small | settings))


def sharp_bloom(vocab_size: int = VOCABULARY, num_heads: int = 4) -> BloomForCausalLM:
    """A random Bloom whose texts are no mere repetition, with Bloom's special tokens."""
    config = BloomConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        n_layer=2,
        n_head=num_heads,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    with torch.random.fork_rng():
        seed_everything(0, verbose=False)
        return BloomForCausalLM(config).eval()


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> str:
    """A folder with a small Bloom and its tokenizer, as `save_pretrained` writes them."""
    return str(save_pretrained(tmp_path_factory.mktemp("bloom")))


def save_pretrained(folder: Path) -> Path:
    """Write them, the same in every process."""
    data = small_data()
    train_byte_bpe([data._texts("train")], VOCABULARY).save_pretrained(folder)
    sharp_bloom().save_pretrained(folder)
    return folder
