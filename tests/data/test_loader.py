import itertools
import pickle

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader, pad_batch

BOUNDARIES = [8, 16, 32]
LENGTHS = np.random.default_rng(0).integers(1, 33, size=90)


class Texts(Dataset):
    def __getitem__(self, index):
        return {"input_ids": [index + 1] * int(LENGTHS[index]), "labels": index % 2, "id": index}

    def __len__(self):
        return len(LENGTHS)


def _loader(shuffle=True, dataset=None, collate_fn=pad_batch, batch_size=4, **settings):
    sampler = BucketBatchSampler(LENGTHS, BOUNDARIES, batch_size, shuffle=shuffle, seed=1)
    return BucketDataLoader(dataset or Texts(), sampler, collate_fn, **settings)


def _ids(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_batches_have_the_shape_of_their_bucket():
    loader = _loader()
    batches = list(loader)
    assert len(batches) == len(loader) == 22
    for batch, indices in zip(batches, loader.batch_sampler, strict=True):
        assert batch["input_ids"].shape == (4, indices.length)
        assert batch["id"].tolist() == indices
    assert "is_real" not in batches[0]


@pytest.mark.parametrize("batch_size", [4, 64])
def test_evaluation_fills_the_last_batch_and_marks_it(batch_size):
    batches = list(_loader(shuffle=False, batch_size=batch_size))
    assert {len(batch["input_ids"]) for batch in batches} == {batch_size}
    assert {batch["input_ids"].shape[1] for batch in batches} <= set(BOUNDARIES)
    real = torch.cat([batch["id"][batch["is_real"]] for batch in batches])
    assert real.sort().values.tolist() == list(range(90))
    last = batches[-1]
    num_real = 90 % batch_size
    assert last["is_real"].tolist() == [True] * num_real + [False] * (batch_size - num_real)
    assert (last["labels"][num_real:] == -100).all()
    assert (last["labels"][:num_real] >= 0).all()
    assert (last["attention_mask"].sum(1) > 0).all()  # no row is masked entirely


def test_filling_leaves_the_loss_as_it_is():
    def loss(batch_size):
        logits = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
        batches = _loader(shuffle=False, batch_size=batch_size)
        total = sum(cross_entropy(logits[b["id"]], b["labels"], reduction="sum") for b in batches)
        return total / 90

    torch.testing.assert_close(loss(64), loss(1))


def test_only_integers_named_as_labels_are_masked():
    def collate(samples, length):
        batch = pad_batch(samples, length)
        return {**batch, "targets": batch["labels"].clone(), "weights": batch["labels"].float()}

    settings = {"label_names": ("targets", "weights"), "shuffle": False, "collate_fn": collate}
    *_, last = _loader(**settings)
    assert last["targets"].tolist()[2:] == [-100, -100]
    assert min(last["labels"].tolist()) >= 0
    assert min(last["weights"].tolist()) >= 0


def _as_tuple(samples, length):
    return torch.tensor([sample["id"] for sample in samples]), length


def _as_tensor(samples, length):
    return torch.tensor([sample["id"] for sample in samples])


@pytest.mark.parametrize("collate_fn", [_as_tuple, _as_tensor])
def test_a_batch_that_is_no_mapping_is_marked_at_its_end(collate_fn):
    for batch in _loader(shuffle=False, collate_fn=collate_fn):
        assert isinstance(batch, tuple)
        assert batch[-1].dtype == torch.bool
        assert batch[-1].shape == batch[0].shape == (4,)


class BatchedTexts(Texts):
    def __getitems__(self, indices):
        return [{**self[index], "num_together": len(indices)} for index in indices]


def test_a_data_set_that_can_load_whole_batches_does():
    batch = next(iter(_loader(dataset=BatchedTexts())))
    assert batch["num_together"].tolist() == [4] * 4


class Epochs(Texts):
    def __getitem__(self, key):
        epoch, index = key
        return {**super().__getitem__(index), "epoch": epoch}


def test_items_can_depend_on_the_epoch():
    loader = _loader(dataset=Epochs(), with_epoch=True)
    loader.set_epoch(7)
    assert {int(epoch) for batch in loader for epoch in batch["epoch"]} == {7}


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}],
)
def test_the_position_counts_batches_taken_not_those_prepared(settings):
    expected = []
    whole = _loader()
    for epoch in (2, 3):
        whole.set_epoch(epoch)
        expected += _ids(whole)
    begun = _loader(**settings)
    begun.set_epoch(2)
    taken = _ids(itertools.islice(begun, 5))
    state = begun.state_dict()
    assert (state["epoch"], state["position"]) == (2, 5)
    resumed = _loader(**settings)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    for epoch in (2, 3):
        resumed.set_epoch(epoch)
        taken += _ids(resumed)
    assert taken == expected


def test_loading_leaves_the_random_numbers_of_the_model_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(_loader(num_workers=1))
    list(_loader())
    torch.testing.assert_close(torch.rand(3), expected)


class Noise(Texts):
    def __getitem__(self, index):
        return {**super().__getitem__(index), "noise": torch.rand(())}


def test_workers_draw_what_seed_and_epoch_decide():
    def noise(epoch):
        loader = _loader(dataset=Noise(), num_workers=1)
        loader.set_epoch(epoch)
        return torch.cat([batch["noise"] for batch in loader])

    torch.testing.assert_close(noise(1), noise(1))
    assert not torch.equal(noise(1), noise(2))


def test_a_copy_for_another_process_goes_on_where_it_stood():
    loader = _loader()
    taken = _ids(itertools.islice(loader, 5))
    sent = _loader()
    sent.load_state_dict(loader.state_dict())
    assert taken + _ids(pickle.loads(pickle.dumps(sent))) == _ids(_loader())


def test_fabric_takes_it_as_it_is_and_resumes(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    loader = _loader()
    wrapped = fabric.setup_dataloaders(loader)
    expected = [_ids(wrapped) for _ in range(3)]
    assert expected[0] != expected[1]

    begun = _loader()
    wrapped = fabric.setup_dataloaders(begun)
    assert _ids(wrapped) == expected[0]
    taken = _ids(itertools.islice(wrapped, 5))
    fabric.save(tmp_path / "state.ckpt", {"loader": wrapped})

    resumed = _loader()
    fabric.load(tmp_path / "state.ckpt", {"loader": resumed})
    wrapped = fabric.setup_dataloaders(resumed)
    assert [taken + _ids(wrapped), _ids(wrapped)] == expected[1:]


def test_a_state_of_other_data_is_refused():
    begun = _loader()
    list(itertools.islice(begun, 3))
    other = BucketBatchSampler(LENGTHS[:80], BOUNDARIES, 4, shuffle=True, seed=1)
    with pytest.raises(ValueError, match=r"after batch 3 of epoch 0, .*samples in each bucket was"):
        BucketDataLoader([Texts()[i] for i in range(80)], other).load_state_dict(begun.state_dict())


@pytest.mark.parametrize("batches", [None, [[1, 2]]])
def test_other_batches_than_a_samplers_are_refused(batches):
    name = type(batches).__name__
    with pytest.raises(ValueError, match=f"from a BucketBatchSampler, but got {name}"):
        BucketDataLoader(Texts(), batches)


def test_a_data_set_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"data set has 3 samples, but .* the lengths of 90"):
        _loader(dataset=[{"input_ids": [1]}] * 3)


class Predicts(pl.LightningModule):
    def predict_step(self, batch):
        return batch["id"][batch["is_real"]]


@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning")
@pytest.mark.parametrize("in_hook", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_prediction_gets_each_sample_once(in_hook, num_workers):
    class Data(pl.LightningDataModule):
        def predict_dataloader(self):
            return _loader(shuffle=False, num_workers=num_workers)

    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    data = Data() if in_hook else Data().predict_dataloader()
    found = torch.cat(trainer.predict(Predicts(), data))
    assert found.sort().values.tolist() == list(range(90))
