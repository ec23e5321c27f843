"""Packed rows train as their pairs would alone, and no pair sees another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.common.errors import UserError
from recipes.mrpc.module import Mrpc
from tests.recipes.mrpc.conftest import VOCAB_SIZE

PACKED = {"max_sequences_per_pack": 8, "pack_length": 256, "batch_size": 2}
_NAMES = ("input_ids", "token_type_ids", "sequence_ids", "labels")


def _module() -> Mrpc:
    torch.manual_seed(0)
    settings = {"max_length": 96, "hidden_size": 32, "initializer_range": 0.2, "dropout": 0.0}
    return Mrpc(vocab_size=VOCAB_SIZE, **settings).train()


def _pairs(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The pairs of a packed batch, one by one."""
    return [
        {
            "input_ids": ids[places == number][None],
            "token_type_ids": types[places == number][None],
            "attention_mask": torch.ones_like(ids[places == number])[None],
            "labels": labels[number - 1 : number],
        }
        for ids, types, places, labels in zip(*(batch[name] for name in _NAMES), strict=True)
        for number in range(1, int(places.max()) + 1)
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("hpu", marks=pytest.mark.slow)])
def test_loss_and_gradients_are_those_of_the_pairs_alone(make_data, device):
    batch = next(iter(make_data(**PACKED).train_dataloader()))
    pairs = _pairs(batch)
    assert len(pairs) == batch["num_sequences"] > 4
    packed = _module().to(device)
    alone = copy.deepcopy(packed).cpu()
    on_device = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    loss = packed(on_device)
    loss.backward()
    expected = torch.stack([alone(pair) for pair in pairs]).sum() / batch["mean_pairs"]
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=1e-6, atol=1e-6)
    for weight, other in zip(packed.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(weight.grad.cpu(), other.grad, rtol=1e-5, atol=1e-6)


def test_a_pair_does_not_see_the_others_of_its_row(make_data):
    batch = next(iter(make_data(**PACKED).train_dataloader()))
    module = _module().eval()
    before = module.logits(batch).unflatten(0, batch["labels"].shape)
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][batch["sequence_ids"] == 1] = 7
    after = module.logits(changed).unflatten(0, batch["labels"].shape)
    is_real = batch["labels"] != -100
    assert torch.equal(after[:, 1:][is_real[:, 1:]], before[:, 1:][is_real[:, 1:]])
    assert not torch.equal(after[:, 0], before[:, 0])


def test_an_epoch_has_each_pair_once_in_one_shape(make_data):
    data = make_data(**PACKED | {"batch_size": 1})
    batches = list(data.train_dataloader())
    indices = torch.cat([batch["index"][batch["labels"] != -100] for batch in batches])
    assert sorted(indices.tolist()) == list(range(len(data.pairs["train"])))
    assert {tuple(batch["input_ids"].shape) for batch in batches} == {(1, 256)}
    assert {tuple(batch["labels"].shape) for batch in batches} == {(1, 8)}
    mean = sum(batch["num_sequences"] for batch in batches) / len(batches)
    assert {batch["mean_pairs"] for batch in batches} == {mean}
    assert "attention_mask" in next(iter(data.val_dataloader()))  # not packed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_sequences_per_pack": 0}, "max_sequences_per_pack=0 leaves a row empty"),
        ({"pack_length": 64}, "pack_length=64 does not hold a pair of data.max_length=96"),
    ],
)
def test_what_cannot_be_packed_is_refused(make_data, settings, message):
    with pytest.raises(UserError, match=message):
        make_data(**settings)
