import numpy as np
import pytest
import torch

from recipes.bert_pretraining.packed import PackedDataset, Vocabulary
from recipes.bert_pretraining.rows import RowPlan, RowShape
from recipes.bert_pretraining.sequences import IS_NEXT, IS_RANDOM
from recipes.bert_pretraining.tokenized import TokenizedCorpus

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(size=50, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=(0, 1, 2, 3, 4))
SHAPE = RowShape(max_seq_length=32, max_predictions_per_seq=5, max_sequences_per_pack=3)


@pytest.fixture
def dataset() -> PackedDataset:
    corpus = TokenizedCorpus(np.arange(5, 50, dtype=np.uint16), np.array([0]), np.array([0]))
    # Two documents; in even epochs the second pair has the second segment of the first.
    sequences = np.array([[0, 4, 4, 10, 0], [10, 14, 14, 20, 1]])
    plan = RowPlan.of(sequences, [[0, 1], [0]])
    return PackedDataset(corpus, plan, VOCABULARY, SHAPE, seed=0)


def _original(row: dict) -> np.ndarray:
    """The row's tokens before masking."""
    ids, kept = row["input_ids"].copy(), row["masked_labels"] >= 0
    ids[row["masked_positions"][kept]] = row["masked_labels"][kept]
    return ids


def test_a_row_holds_its_sequences_one_after_another(dataset):
    row = dataset[0, 0]
    a, b, c = range(5, 9), range(9, 15), range(15, 19)
    assert _original(row).tolist() == [CLS, *a, SEP, *b, SEP, CLS, *c, SEP, *b, SEP] + [PAD] * 6
    assert row["sequence_ids"].tolist() == [1] * 13 + [2] * 13 + [0] * 6
    assert row["position_ids"].tolist() == [*range(13), *range(13)] + [0] * 6
    types = [0] * 6 + [1] * 7
    assert row["token_type_ids"].tolist() == types + types + [0] * 6
    assert row["cls_positions"].tolist() == [0, 13, 0]
    assert row["next_sentence_labels"].tolist() == [IS_NEXT, IS_RANDOM, -100]
    assert (row["num_tokens"], row["num_sequences"]) == (26, 2)


def test_the_other_pair_is_exchanged_in_the_next_epoch(dataset):
    row = dataset[1, 0]
    assert row["next_sentence_labels"].tolist() == [IS_RANDOM, IS_NEXT, -100]
    assert _original(row)[6:12].tolist() == [*range(19, 25)]
    assert _original(row)[19:25].tolist() == [*range(19, 25)]


def test_a_row_without_pairs_has_one_segment_a_sequence(dataset):
    sequences = np.array([[0, 10, 0, 0, 0]])
    plan = RowPlan.of(sequences, [[0]])
    row = PackedDataset(dataset.corpus, plan, VOCABULARY, SHAPE, seed=0)[0, 0]
    assert _original(row).tolist() == [CLS, *range(5, 15), SEP] + [PAD] * 20
    assert not row["token_type_ids"].any()
    assert (row["next_sentence_labels"] == -100).all()


def test_shapes_do_not_depend_on_the_content(dataset):
    shapes = [{k: np.shape(v) for k, v in dataset[0, i].items()} for i in (0, 1, -1)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[0]["masked_positions"] == (5,)


def test_about_15_percent_are_predicted_never_special_tokens(dataset):
    for epoch in range(50):
        row = dataset[epoch, 0]
        labels = row["masked_labels"]
        assert (labels >= 0).sum() == round(0.15 * 20)
        assert (labels[labels >= 0] > MASK).all()


def test_of_predicted_tokens_80_percent_are_hidden_and_10_percent_replaced(dataset):
    counts = np.zeros(3)
    for epoch in range(1000):
        row = dataset[epoch, 0]
        kept = row["masked_labels"] >= 0
        shown = row["input_ids"][row["masked_positions"][kept]]
        same = shown == row["masked_labels"][kept]
        counts += [(shown == MASK).sum(), ((shown != MASK) & ~same).sum(), same.sum()]
        assert ((shown > MASK) | (shown == MASK)).all()
    np.testing.assert_allclose(counts / counts.sum(), [0.8, 0.1, 0.1], atol=0.03)


def test_masks_change_with_the_epoch_and_can_be_repeated(dataset):
    first = dataset[0, 0]["masked_positions"]
    assert (dataset[0, 0]["masked_positions"] == first).all()
    assert any((dataset[epoch, 0]["masked_positions"] != first).any() for epoch in (1, 2, 3))


def test_an_empty_row_predicts_nothing(dataset):
    row = dataset[0, -1]
    assert (row["masked_labels"] == -100).all()
    assert (row["num_tokens"], row["num_sequences"]) == (0, 0)
    assert (row["input_ids"] == PAD).all()


def test_workers_give_the_same_batches(make_data):
    torch.multiprocessing.set_sharing_strategy("file_system")
    batches = [list(make_data(num_workers=n).train_dataloader()) for n in (0, 1)]
    for alone, with_worker in zip(*batches, strict=True):
        assert alone.keys() == with_worker.keys()
        torch.testing.assert_close(alone, with_worker, rtol=0, atol=0)


def test_an_index_alone_is_evaluated_alike_in_all_epochs(dataset):
    for name, value in dataset[0].items():
        np.testing.assert_array_equal(value, dataset[0, 0][name])
