"""The embedded task: what is shown, what is held out, and whether the judge can tell."""

import numpy as np
import pytest

from recipes.text_to_image.data import NoisyPictures, TextToImageData
from recipes.text_to_image.digits import HELD_OUT, NAMES, PAIRS, PALETTE, TRAINED, Pair, paint
from recipes.text_to_image.judge import Judge, count, means
from recipes.text_to_image.scoring import real_scores
from recipes.text_to_image.scratch import make_tokenizer


@pytest.fixture(scope="module")
def data():
    return TextToImageData()


def test_every_digit_misses_one_colour_and_every_colour_a_digit():
    assert sorted(pair.digit for pair in HELD_OUT) == list(range(10))
    assert {pair.colour for pair in HELD_OUT} == set(range(len(PALETTE)))
    assert len(PAIRS) == len(set(PAIRS)) == len(TRAINED) + len(HELD_OUT) == 60
    assert Pair(0, 7).caption == "a red seven"
    assert len({pair.caption for pair in PAIRS}) == 60


def test_splits_share_no_digit_and_have_all_of_them(data):
    splits = [data.split(name) for name in ("train", "validation", "test")]
    assert [len(each.digits) for each in splits] == [1437, 180, 180]
    rows = {each.tobytes() for split in splits for each in split.ink}
    assert len(rows) == 1797


def test_training_never_shows_a_pair_that_is_held_out(data):
    pictures = NoisyPictures(data.split("train"), TRAINED, 0.0, seed=0)
    shown = {tuple(pictures[0, index]["input_ids"]) for index in range(len(pictures))}
    tokenizer = make_tokenizer()
    captions = {pair: tuple(tokenizer(pair.caption).input_ids) for pair in PAIRS}
    seen = {pair for pair, ids in captions.items() if any(each[:5] == ids for each in shown)}
    assert seen == set(TRAINED)


def test_noise_is_of_the_epoch_and_the_picture_alone(data):
    pictures = NoisyPictures(data.split("train"), TRAINED, 0.1, seed=0)
    first, again, later = pictures[0, 5], pictures[0, 5], pictures[1, 5]
    assert np.array_equal(first["noise"], again["noise"])
    assert first["timesteps"] == again["timesteps"]
    assert not np.array_equal(first["noise"], later["noise"])
    assert np.array_equal(first["pictures"], later["pictures"])


def test_a_share_of_the_captions_is_dropped(data):
    pictures = NoisyPictures(data.split("train"), TRAINED, 0.25, seed=0)
    empty = make_tokenizer()("", padding="max_length", max_length=8).input_ids
    dropped = [pictures[0, index]["input_ids"] == empty for index in range(2000)]
    assert 0.2 < np.mean(dropped) < 0.3


def test_all_batches_have_one_shape(data):
    shapes = {
        tuple((name, tuple(each.shape), each.dtype) for name, each in batch.items())
        for batch in data.train_dataloader()
    }
    assert len(shapes) == 1
    ((pictures, *_, ids),) = shapes
    assert pictures[:2] == ("pictures", (64, 3, 8, 8))
    assert ids[:2] == ("input_ids", (64, 8))


def test_each_word_is_a_token_and_other_words_are_spelt():
    tokenizer = make_tokenizer()
    words = {word for pair in PAIRS for word in pair.caption.split()}
    assert words == {"a", *PALETTE, *NAMES}
    assert all(len(tokenizer(word).input_ids) == 3 for word in words)
    assert tokenizer.decode(tokenizer("pink zebra").input_ids[1:-1]).strip() == "pink zebra"


def test_the_judge_knows_real_pictures_it_has_never_seen(data):
    for split in ("validation", "test"):
        scores = real_scores(data, split)
        assert scores["agreement"] > 97
        assert 10 < scores["distance"] < 25


def test_the_judge_is_not_taken_in(data):
    ink, digits = data.split("validation")
    painted = np.stack([paint(each, 2) for each in ink]) / 2 + 0.5
    judge = Judge(data.split("train"))
    pairs = [Pair(2, int(digit)) for digit in digits]
    assert means(count(pairs, judge.look(painted)))["agreement"] > 97
    wrong = [Pair(3, int(digit)) for digit in digits]
    assert means(count(wrong, judge.look(painted)))["agreement"] == 0
    others = [Pair(2, (int(digit) + 1) % 10) for digit in digits]
    assert means(count(others, judge.look(painted)))["digit"] < 3
    noise = np.random.default_rng(0).random(painted.shape, dtype=np.float32)
    found = means(count(pairs, judge.look(noise)))
    assert found["agreement"] < 15
    assert found["distance"] > 40


def test_a_training_picture_is_at_no_distance(data):
    ink = data.split("train").ink[:5]
    painted = np.stack([paint(each, 1) for each in ink]) / 2 + 0.5
    assert Judge(data.split("train")).look(painted).distances.max() < 0.1
