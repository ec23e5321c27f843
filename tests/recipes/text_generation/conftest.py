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
    """A random Bloom with large weights, whose texts are no mere repetition."""
    config = BloomConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        n_layer=2,
        n_head=num_heads,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    with torch.random.fork_rng():
        seed_everything(0, verbose=False)
        model = BloomForCausalLM(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.4)
        return model.eval()


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> str:
    """A folder with a small Bloom and its tokenizer, as `save_pretrained` writes them."""
    return str(save_pretrained(tmp_path_factory.mktemp("bloom")))


def save_pretrained(folder: Path, num_heads: int = 4) -> Path:
    """Write them, the same each time."""
    data = small_data()
    train_byte_bpe([data._texts("train")], VOCABULARY).save_pretrained(folder)
    sharp_bloom(num_heads=num_heads).save_pretrained(folder)
    return folder
