import random
from pathlib import Path

import pytest

from recipes.bert_pretraining.data import BertData

ADJECTIVES = (
    "quick",
    "lazy",
    "bright",
    "quiet",
    "heavy",
    "narrow",
    "gentle",
    "broken",
    "silver",
    "hidden",
)
NOUNS = (
    "river",
    "engine",
    "garden",
    "letter",
    "window",
    "mountain",
    "teacher",
    "market",
    "signal",
    "harbour",
)
VERBS = (
    "follows",
    "carries",
    "mentions",
    "watches",
    "repairs",
    "crosses",
    "measures",
    "answers",
    "covers",
    "builds",
)


def _sentence(rng: random.Random) -> str:
    words = [f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" for _ in range(rng.randint(2, 4))]
    return f" {rng.choice(VERBS)} ".join(words).capitalize() + "."


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A text file of 80 documents of one to eight sentences."""
    rng = random.Random(0)
    documents = [" ".join(_sentence(rng) for _ in range(rng.randint(1, 8))) for _ in range(80)]
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory) -> Path:
    """Where the data of these tests are prepared, once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make_data(corpus, cache_dir):
    """Builds the data of a small run; keyword arguments override it."""

    def make(**settings) -> BertData:
        small = {
            "source": "path",
            "path": str(corpus),
            "cache_dir": str(cache_dir),
            "vocab_size": 120,
            "batch_size": 4,
            "max_seq_length": 48,
            "max_predictions_per_seq": 8,
            "max_sequences_per_pack": 4,
            "validation_share": 0.1,
        }
        data = BertData(**(small | settings))
        data.setup("fit")
        return data

    return make
