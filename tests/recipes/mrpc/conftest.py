from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from recipes.common.reader import open_tables
from recipes.common.tokenization import train_wordpiece
from recipes.mrpc.data import MrpcData
from recipes.mrpc.pairs import FIELDS, Splits, read_pairs

FIXTURES = Path(__file__).parents[2] / "fixtures" / "mrpc"
VOCAB_SIZE = 300


def pairs_of(path: Path, positive_label: str | None = None, **settings) -> Splits:
    """The pairs of a file or a folder, as the recipe reads them."""
    return read_pairs(open_tables("path", str(path), FIELDS, **settings), positive_label)


@pytest.fixture
def make_data():
    """Builds the data of a small run on the fixtures; keyword arguments override it."""

    def make(**settings) -> MrpcData:
        small = {
            "source": "path",
            "path": str(FIXTURES / "glue"),
            "vocab_size": VOCAB_SIZE,
            "batch_size": 4,
            "max_length": 96,
            "num_buckets": 3,
        }
        data = MrpcData(**(small | settings))
        data.setup("fit")
        return data

    return make


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> Path:
    """A folder as the hub has it, with a tiny BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("pretrained")
    sentences = [pair[:2] for pair in pairs_of(FIXTURES / "msr")["train"]]
    tokenizer = train_wordpiece(sentences, VOCAB_SIZE)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder
