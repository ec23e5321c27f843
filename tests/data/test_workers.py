"""Workers in a loop without Lightning, beside a card: what they get is what a fork would give."""

import json

import pytest

from tests.helpers.forked import fork_python

_MODULE = """
import os
# What has imported this; as a number, workers would have the program's.
server = (lambda pid: lambda: pid)(os.getpid())

class Rows:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return server() == os.getppid()
"""

_SCRIPT = """
import json, pathlib, sys
import numpy as np, torch
from torch.utils.data import DataLoader
from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader, worker_context
from lightning_gaudi.simulator import rules
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
import first, second

class Rows:
    def __init__(self):
        self.many = [torch.full((8,), float(index)) for index in range(300)]
        self.big = torch.arange(2**20)
        self.tied = self.big[:4]
        self.shared = torch.zeros(4).share_memory_()
        self.array = np.arange(2**20).reshape(1024, 1024)
        self.turned = np.asfortranarray(self.array)
        self.array.flags.writeable = False
        self.records = np.zeros(2**17, [("a", "i4"), ("b", "f8")])
        path = folder / "file"
        np.arange(2**12).tofile(path)
        self.file = np.memmap(path, np.int64, "r")[1000:2000]
    def __len__(self):
        return len(self.many)
    def __getitem__(self, index):
        ours = (self.big[3], self.tied[2], self.array[1, 2], self.turned[1, 2], self.file[5])
        found = [int(each) for each in ours]
        kept = type(self.file) is np.memmap and not self.array.flags.writeable
        kept = kept and self.records.dtype.names == ("a", "b") and self.turned.flags.f_contiguous
        if index >= 298:  # the last one of each worker
            self.big[2] = -1
            kept = kept and self.tied[2] == -1
            self.turned[1, 2] = -1
            self.shared[index - 298] = 1
        return self.many[index].sum(), torch.tensor([*found, int(kept)])

torch.ones(1).to("hpu")
given = {"num_workers": 2, "multiprocessing_context": worker_context()}
loader = DataLoader(rows := Rows(), **given)
epochs = [list(loader) for _ in range(2)]
descriptors = [str(path.readlink()) for path in pathlib.Path("/proc/self/fd").iterdir()
               if path.is_symlink()]
plain = {"num_workers": 1, "multiprocessing_context": worker_context()}
plain["worker_init_fn"] = [].append  # it has no module
imported = [all(DataLoader(module.Rows(), **plain)) for module in (first, second)]
order = BucketBatchSampler([8] * 300, [8], 100, shuffle=False)
bucketed = BucketDataLoader(rows.many, order, lambda rows, _: torch.stack(rows), **plain)
print(json.dumps({
    "sums": [sum(sum.item() for sum, _ in epoch) for epoch in epochs],
    "found": sorted({tuple(found[0].tolist()) for epoch in epochs for _, found in epoch}),
    "unchanged": [rows.big[2].item(), int(rows.turned[1, 2])],
    "shared": rows.shared.tolist(),
    "imported": imported,
    "bucketed": sum(batch[0].sum().item() for batch in bucketed),
    "descriptors": [link for link in descriptors if "memfd:workers" in link],
    "findings": [finding.rule for finding in rules.findings()],
}))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What a script found."""
    folder = tmp_path_factory.mktemp("modules")
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(_MODULE)
    return json.loads(fork_python(_SCRIPT, str(folder)).stdout.splitlines()[-1])


@pytest.mark.slow
def test_more_tensors_than_a_server_takes_descriptors_arrive(ran):
    assert ran["sums"] == [8 * sum(range(300))] * 2


def test_tensors_arrays_and_files_arrive_as_they_are(ran):
    assert ran["found"] == [[3, 2, 1026, 1026, 1005, 1]]


def test_what_a_worker_changes_is_its_own(ran):
    assert ran["unchanged"] == [2, 1026]


def test_nothing_is_kept_for_workers_that_have_started(ran):
    assert ran["descriptors"] == []


def test_a_tensor_that_the_program_has_shared_stays_shared(ran):
    assert ran["shared"][:2] == [1, 1]


def test_the_server_imports_the_modules_of_all_loaders(ran):
    assert ran["imported"] == [True, True]


def test_a_loader_of_buckets_takes_the_context(ran):
    assert ran["bucketed"] == 8 * sum(range(300))


def test_nothing_was_forked_beside_the_card(ran):
    assert "fork-beside-card" not in ran["findings"]
