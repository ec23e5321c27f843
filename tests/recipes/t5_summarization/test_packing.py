"""Packed rows train as their articles would alone, and no article sees another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_gaudi.data import describe
from recipes.common.errors import UserError
from recipes.t5_summarization.module import T5Summarization
from tests.recipes.t5_summarization.conftest import VOCABULARY, tiny_t5

PACKED = {"max_sequences_per_pack": None, "pack_length": 320, "batch_size": 2}


def _module(data: Any, **settings: Any) -> T5Summarization:
    torch.manual_seed(0)
    module = T5Summarization(vocab_size=VOCABULARY, dropout=0.0, **settings)
    module.model = tiny_t5(vocab_size=VOCABULARY, dropout_rate=0.0, num_layers=2)
    return module.train()


def _rows(batch: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The articles and summaries of a packed batch, one by one."""
    names = ("input_ids", "sequence_ids", "labels", "labels_sequence_ids")
    return [
        (ids[places == number], labels[targets == number])
        for ids, places, labels, targets in zip(*(batch[name] for name in names), strict=True)
        for number in range(1, int(places.max()) + 1)
    ]


def _alone(ids: Tensor, labels: Tensor, mean_targets: float) -> dict[str, Any]:
    mask = torch.ones_like(ids)[None]
    batch = {"input_ids": ids[None], "attention_mask": mask, "labels": labels[None]}
    return {**batch, "mean_targets": mean_targets}


def _gradients(module: T5Summarization) -> dict[str, Tensor]:
    return {name: weight.grad.cpu().clone() for name, weight in module.model.named_parameters()}


@pytest.mark.parametrize("device", ["cpu", pytest.param("hpu", marks=pytest.mark.slow)])
def test_loss_and_gradients_are_those_of_the_articles_alone(make_data, device):
    data = make_data(**PACKED)
    batch = next(iter(data.train_dataloader()))
    assert batch["num_sequences"] > 2  # rows have several
    packed = _module(data).to(device)
    alone = copy.deepcopy(packed).cpu()
    on_device = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    loss = packed(on_device)["loss"]
    loss.backward()
    parts = [
        alone(_alone(ids, labels, batch["mean_targets"]))["loss"] for ids, labels in _rows(batch)
    ]
    expected = torch.stack(parts).sum()
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=1e-6, atol=1e-6)
    for name, gradient in _gradients(packed).items():
        torch.testing.assert_close(gradient, _gradients(alone)[name], rtol=1e-5, atol=1e-6)


def test_an_article_does_not_see_the_others_of_its_row(make_data):
    batch = next(iter(make_data(**PACKED).train_dataloader()))
    module = _module(None).eval()
    before = module.logits(batch)
    for name, places in (("input_ids", "sequence_ids"), ("labels", "labels_sequence_ids")):
        changed = {**batch, name: batch[name].clone()}
        changed[name][batch[places] == 1] = 7
        others = batch["labels_sequence_ids"] > 1
        assert torch.equal(module.logits(changed)[others], before[others])
        assert not torch.equal(module.logits(changed)[~others], before[~others])


def test_an_epoch_has_each_article_once_in_one_shape(make_data):
    data = make_data(**PACKED | {"batch_size": 1})
    loader = data.train_dataloader()
    found = [row for batch in loader for row in _rows(batch)]
    dataset = data.dataset("train")
    expected = sorted(tuple(dataset[index]["input_ids"].tolist()) for index in range(len(dataset)))
    assert sorted(tuple(ids.tolist()) for ids, _ in found) == expected
    assert all(labels[-1] == 1 for _, labels in found)  # </s>
    report = describe(loader, pad_ids={"labels": -100})
    assert report.num_compilations == 1
    assert report.num_batches < len(dataset) / 1.5
    assert next(iter(data.val_dataloader()[0])).keys() >= {"attention_mask"}  # not packed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_sequences_per_pack": 0}, "max_sequences_per_pack=0 leaves a row empty"),
        (
            {"pack_length": 128},
            "pack_length=128 does not hold an article of data.max_source_length",
        ),
        ({"max_sequences_per_pack": 4, "loss_on_padding": True}, "learns the padding behind"),
    ],
)
def test_what_cannot_be_packed_is_refused(make_data, settings, message):
    with pytest.raises(UserError, match=message):
        make_data(**settings)
