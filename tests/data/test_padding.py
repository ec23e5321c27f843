import numpy as np
import pytest
import torch

from lightning_gaudi.data import pad_batch


def test_sequences_are_padded_and_numbers_stacked():
    samples = [
        {"input_ids": [1, 2, 3], "label": 1, "score": 0.5, "name": "a"},
        {"input_ids": [4], "label": 0, "score": 1.5, "name": "b"},
    ]
    batch = pad_batch(samples, 4, pad_values={"input_ids": 9})
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert batch["label"].tolist() == [1, 0]
    assert batch["score"].dtype == torch.float32
    assert batch["name"] == ["a", "b"]


@pytest.mark.parametrize(
    "make", [list, np.array, torch.tensor, lambda x: torch.tensor(x).to(torch.int32)]
)
def test_types_are_kept(make):
    batch = pad_batch([{"ids": make([1, 2])}, {"ids": make([3])}], 3)
    assert batch["ids"].tolist() == [[1, 2, 0], [3, 0, 0]]
    expected = torch.as_tensor(make([1])).dtype
    assert batch["ids"].dtype == expected


def test_half_precision_and_several_dimensions():
    half = torch.ones(2, dtype=torch.bfloat16)
    image = torch.rand(3, 2, 2)
    batch = pad_batch([{"half": half, "image": image, "array": np.ones((2, 2))}] * 2, 3)
    assert batch["half"].tolist() == [[1, 1, 0]] * 2
    assert batch["half"].dtype == torch.bfloat16
    torch.testing.assert_close(batch["image"], torch.stack([image, image]))
    assert batch["array"].shape == (2, 2, 2)


def test_an_attention_mask_of_the_samples_is_kept():
    batch = pad_batch([{"input_ids": [1, 2], "attention_mask": [0, 1]}], 3)
    assert batch["attention_mask"].tolist() == [[0, 1, 0]]


def test_an_empty_sequence_keeps_the_type_of_the_others():
    batch = pad_batch([{"ids": []}, {"ids": [1]}], 2)
    assert batch["ids"].dtype == torch.int64
    assert batch["ids"].tolist() == [[0, 0], [1, 0]]


def test_names_have_their_own_lengths():
    samples = [{"input_ids": [1, 2, 3, 4], "labels": [5]}]
    batch = pad_batch(samples, 6, lengths={"labels": 2}, pad_values={"labels": -100})
    assert batch["input_ids"].shape == (1, 6)
    assert batch["labels"].tolist() == [[5, -100]]


def test_a_sequence_longer_than_its_length_is_refused():
    with pytest.raises(ValueError, match=r"labels: A sample has 3 tokens but .* bucket holds 2"):
        pad_batch([{"labels": [1, 2, 3]}], 8, lengths={"labels": 2})


def test_samples_of_other_names_are_refused():
    message = r"the first has \['a', 'b'\] and sample 1 of the batch has \['a'\]"
    with pytest.raises(ValueError, match=message):
        pad_batch([{"a": 1, "b": 2}, {"a": 1}], 8)


def test_samples_that_are_no_mappings_are_refused():
    with pytest.raises(ValueError, match="must be mappings of names to values, but are tuple"):
        pad_batch([(torch.ones(2), 1)], 8)
