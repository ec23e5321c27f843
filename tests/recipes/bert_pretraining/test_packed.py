import numpy as np
import pytest
import torch

from recipes.bert_pretraining.packed import EpochSampler, PackedDataset, RowShape, Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(size=50, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special=(0, 1, 2, 3, 4))
SHAPE = RowShape(max_seq_length=32, max_predictions_per_seq=5, max_sequences_per_pack=3)


@pytest.fixture
def dataset() -> PackedDataset:
    tokens = np.arange(5, 50, dtype=np.uint16)
    sequences = np.array([[0, 10, 0, 0, -100], [10, 14, 20, 26, 1]])
    return PackedDataset(tokens, sequences, [[0, 1], [0]], VOCABULARY, SHAPE, seed=0)


def _original(row: dict) -> np.ndarray:
    """The row's tokens before masking."""
    ids, kept = row["input_ids"].copy(), row["masked_labels"] >= 0
    ids[row["masked_positions"][kept]] = row["masked_labels"][kept]
    return ids


def test_a_row_holds_its_sequences_one_after_another(dataset):
    row = dataset[0, 0]
    a, b, c = range(5, 15), range(15, 19), range(25, 31)
    assert _original(row).tolist() == [CLS, *a, SEP, CLS, *b, SEP, *c, SEP] + [PAD] * 7
    assert row["sequence_ids"].tolist() == [1] * 12 + [2] * 13 + [0] * 7
    assert row["position_ids"].tolist() == [*range(12), *range(13)] + [0] * 7
    assert row["token_type_ids"].tolist() == [0] * 18 + [1] * 7 + [0] * 7
    assert row["cls_positions"].tolist() == [0, 12, 0]
    assert row["next_sentence_labels"].tolist() == [-100, 1, -100]
    assert (row["num_tokens"], row["num_sequences"]) == (25, 2)


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


def test_training_order_is_shuffled_anew_in_each_epoch():
    sampler = EpochSampler(10, batch_size=4, shuffle=True, seed=0)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert {epoch for epoch, _ in first} == {0}
    assert {epoch for epoch, _ in second} == {1}
    assert sorted(index for _, index in second) == list(range(10))
    assert [index for _, index in first] != [index for _, index in second]


def test_evaluation_is_in_order_and_fills_the_last_batch_with_empty_rows():
    sampler = EpochSampler(6, batch_size=4, shuffle=False, seed=0)
    sampler.set_epoch(3)
    assert list(sampler) == [*((0, i) for i in range(6)), (0, -1), (0, -1)]
    assert len(sampler) == 8


def test_ranks_share_the_items_of_an_epoch_evenly():
    samplers = [
        EpochSampler(11, batch_size=2, shuffle=True, seed=0, num_ranks=2, rank=rank)
        for rank in (0, 1)
    ]
    parts = [[index for _, index in sampler] for sampler in samplers]
    assert [len(part) for part in parts] == [len(sampler) for sampler in samplers] == [5, 5]
    assert len({*parts[0], *parts[1]}) == 10


def test_ranks_evaluate_each_item_once_in_full_batches():
    samplers = [
        EpochSampler(9, batch_size=4, shuffle=False, seed=0, num_ranks=2, rank=rank)
        for rank in (0, 1)
    ]
    parts = [[index for _, index in sampler] for sampler in samplers]
    assert [len(part) for part in parts] == [len(sampler) for sampler in samplers] == [8, 8]
    assert sorted(index for part in parts for index in part if index >= 0) == list(range(9))


def test_workers_give_the_same_batches(make_data):
    torch.multiprocessing.set_sharing_strategy("file_system")
    batches = [list(make_data(num_workers=n).train_dataloader()) for n in (0, 1)]
    for alone, with_worker in zip(*batches, strict=True):
        assert alone.keys() == with_worker.keys()
        torch.testing.assert_close(alone, with_worker, rtol=0, atol=0)
