"""Workers of DataLoaders beside a card: never forked from its process, and right."""

from __future__ import annotations

import json
import multiprocessing
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from lightning_gaudi.distributed.strategy import start_workers_safely
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, TinyModule
from tests.helpers.trainers import run_trainers
from tests.strategies import worker_cases

pytestmark = pytest.mark.slow

_CHOICES = ("spawn", "forkserver")


def _method(**settings):
    loader = DataLoader([1, 2], **settings)
    start_workers_safely(loader)
    context = loader.multiprocessing_context
    return context and (type(context).__name__, context.get_start_method())


def test_the_start_method_is_ours_unless_the_user_has_chosen_one():
    assert _method(num_workers=1) == ("WorkerContext", "forkserver")
    assert _method() is None
    for choice in _CHOICES:
        assert _method(num_workers=1, multiprocessing_context=choice)[1] == choice
        assert _method(num_workers=1, multiprocessing_context=choice)[0] != "WorkerContext"
    start_workers_safely([torch.ones(1)])  # what is no DataLoader stays


@pytest.mark.parametrize("choice", _CHOICES)
def test_a_start_method_of_the_whole_program_is_left(choice, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: choice)
    assert _method(num_workers=1) is None


def test_python_s_default_is_nobody_s_choice(monkeypatch):
    # As Python 3.14 has it, once somebody has asked for the default.
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "forkserver")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork"])
    assert _method(num_workers=1) == ("WorkerContext", "forkserver")


def test_another_library_s_loader_is_taken_too():
    loader = SimpleNamespace(num_workers=1, multiprocessing_context=None)
    start_workers_safely(loader)
    assert loader.multiprocessing_context.get_start_method() == "forkserver"


def test_forked_workers_are_refused():
    loader = DataLoader([1], num_workers=2, multiprocessing_context="fork")
    message = "num_workers=2 and multiprocessing_context='fork'"
    with pytest.raises(MisconfigurationException, match=message):
        Trainer(accelerator="hpu", devices=1, max_epochs=1, **QUIET).fit(TinyModule(), loader)
    with pytest.raises(MisconfigurationException, match=message):
        Fabric(accelerator="hpu", devices=1).setup_dataloaders(loader)


_SCRIPT = """
import collections, json, sys, warnings
import lightning.pytorch as pl, torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset
from lightning_gaudi.simulator import rules
from tests.helpers.tiny import QUIET, ValidatedModule
from tests.strategies import worker_cases

Batch = collections.namedtuple("Batch", "rows is_new torch_default seen")

class OfScript(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return lambda: torch.full((8,), float(index))

def collate(rows):
    seen = [name for name in ("_hpu_sim", "habana_frameworks") if name in sys.modules]
    # A function of the program finds its names, and a batch is of the program's class.
    is_new = isinstance(OfScript(), OfScript) and "Batch" in vars(sys.modules["__main__"])
    return Batch(torch.stack([row() for row in rows]), is_new, torch.tensor(0.5).dtype, seen)

forked = worker_cases.train(2, "fork", accelerator="cpu")  # before this process has a card
found = worker_cases.train(2, accelerator="hpu", devices=1)
same = [torch.allclose(one, two, atol=1e-6) for one, two in zip(forked, found, strict=True)]

torch.set_default_dtype(torch.float64)
fabric = Fabric(accelerator="hpu", devices=1)
loader = fabric.setup_dataloaders(DataLoader(OfScript(), 2, collate_fn=collate, num_workers=1))
batches = [batch for epoch in range(2) for batch in loader]
torch.set_default_dtype(torch.float32)

class Counting(ValidatedModule):
    count = 0
    def on_validation_batch_end(self, *args):
        self.count += 1
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return super().predict_step(batch, batch_idx)
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return super().validation_step(batch, batch_idx)
data = torch.utils.data.TensorDataset(torch.ones(4, 8))
loaders = [DataLoader(data, 2, num_workers=count) for count in (1, 0)]
model, trainer = Counting(), pl.Trainer(accelerator="hpu", devices=1, **QUIET)
trainer.validate(model, loaders, verbose=False)
predicted = trainer.predict(model, loaders)
combined = CombinedLoader({"a": loaders[0]}, "sequential")
trainer.validate(model, combined, verbose=False)
print(json.dumps({
    "same": same,
    "rows": [batch.rows.sum().item() for batch in batches],
    "devices": [str(batch.rows.device) for batch in batches],
    "is_new": all(batch.is_new for batch in batches),
    "dtype": str(batches[0].torch_default),
    "seen": batches[0].seen,
    "class": all(type(batch) is Batch for batch in batches),
    "validated": model.count,
    "predicted": [len(each) for each in predicted],
    "contexts": [type(each.multiprocessing_context).__name__ for each in loaders],
    "findings": [finding.rule for finding in rules.findings()],
}))
"""


@pytest.fixture(scope="module")
def ran():
    """What a script found that is not guarded by `if __name__ == "__main__"`."""
    return json.loads(fork_python(_SCRIPT).stdout.splitlines()[-1])


def test_batches_and_weights_are_those_of_forked_workers_on_the_cpu(ran):
    assert ran["same"] == [True] * 12


def test_the_program_s_own_names_work_in_workers(ran):
    assert ran["is_new"]
    assert ran["class"]
    assert ran["rows"] == [8.0, 40.0] * 2
    assert ran["devices"] == ["hpu:0"] * 4


def test_workers_take_on_settings_and_load_no_device(ran):
    assert ran["dtype"] == "torch.float64"
    assert ran["seen"] == []


def test_all_loaders_of_a_trainer_are_taken(ran):
    assert ran["validated"] == 6
    assert ran["predicted"] == [2, 2]
    assert ran["contexts"] == ["WorkerContext", "NoneType"]


def test_no_process_was_forked_beside_the_card(ran):
    assert "fork-beside-card" not in ran["findings"]


def test_ranks_train_alike_with_and_without_workers(tmp_path):
    for without, with_worker in run_trainers(worker_cases.train_on_ranks, tmp_path):
        assert len(without) == len(with_worker) == 6
        for one, other in zip(without, with_worker, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
