"""Each change that an audit advises is made, and what it was about is gone.

The rules' own advice is tried in tests/simulator/rules/test_remedies.py.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightning_gaudi.tools.audit.finding import _FIXES
from tests.helpers.process import run

TRAINER = """
import lightning.pytorch as pl, torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAccuracy

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.accuracy = MulticlassAccuracy(3, validate_args=False)
        self.right = BinaryAccuracy(validate_args=VALIDATE)
        self.area = BinaryAUROC(thresholds=THRESHOLDS, validate_args=False)
        self.mean = MeanMetric(nan_strategy=NAN)

    def training_step(self, batch):
        logits = self.layer(batch[0])
        loss = torch.nn.functional.cross_entropy(logits, batch[1])
        self.log("loss", loss, prog_bar=BAR)
        self.accuracy(logits, batch[1])
        self.right(logits[:, 1].sigmoid(), (batch[1] == 1).long())
        self.area(logits.softmax(1)[:, 1], (batch[1] == 1).long())
        self.mean(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = TensorDataset(torch.randn(320, 8), torch.arange(320) % 3)
pl.Trainer(
    accelerator="hpu", devices=1, max_epochs=1, deterministic=DETERMINISTIC, logger=False,
    enable_checkpointing=False,
).fit(Module(), DataLoader(data, 16))
"""
FABRIC = """
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="hpu", devices=1)
model = torch.nn.Linear(8, 3)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(20):
    fabric.backward(model(torch.ones(4, 8, device=fabric.device)).sum())
    fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=CHECK)
    optimizer.step()
    optimizer.zero_grad()
"""
TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=1))
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8),
         "attention_mask": torch.ones(8, dtype=torch.long)} for _ in range(80)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=20, report_to=[], save_strategy="no",
    logging_steps=EVERY, logging_nan_inf_filter=FILTER, MORE
)
Trainer(model, arguments, train_dataset=rows).train()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=FREE))
model = torch.nn.Linear(8, 3)
data = DataLoader(TensorDataset(torch.randn(80, 8)), 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for (rows,) in data:
    accelerator.backward(model(rows).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
BLOCKS = """
import torch

class Block(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Tanh())

blocks = torch.nn.Sequential(*[Block() for _ in range(6)])

class Rows(torch.utils.data.Dataset):
    lengths = torch.randint(1, 65, (ROWS,), generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.ones(self.lengths[index], 8)

def pad_sequence(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

def pad(rows):
    padded = pad_sequence(rows)
    return torch.nn.functional.pad(padded, (0, 0, 0, -padded.shape[1] % MULTIPLE))
"""
PLAIN = f"""{BLOCKS}
from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader

blocks = blocks.to("hpu")
model = WRAP(blocks)
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
total = torch.zeros((), device="hpu")
for rows in LOADER:
    rows = rows[:, CUT(rows)]
    loss = model(rows.to("hpu", non_blocking=FREE)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += READ(loss)
print(total)
"""
LIGHTNING = f"""{BLOCKS}
import lightning as L
from lightning_gaudi.strategies import SingleHPUStrategy

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = blocks

    def training_step(self, rows):
        return self.blocks(rows).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

L.Trainer(
    accelerator="hpu", max_epochs=1, logger=False, enable_checkpointing=False,
    strategy=SingleHPUStrategy(compile=REGIONS),
).fit(Module(), torch.utils.data.DataLoader(torch.ones(80, 4, 8), 4))
"""
_LOADER = "torch.utils.data.DataLoader(Rows(), 4, collate_fn=pad, drop_last=True)"
_BUCKETS = (
    "BucketDataLoader(Rows(), BucketBatchSampler(Rows.lengths, BOUNDARIES, 4, shuffle=True), "
    "lambda rows, length: torch.nn.functional.pad(pad(rows), (0, 0, 0, length))[:, :length])"
)
_WRAP = "(lambda model: torch.compile(model, backend='hpu_backend', dynamic=False))"
_GOOD = {
    **{"ROWS": "41", "MULTIPLE": "64", "READ": "torch.Tensor.detach", "REGIONS": "'regions'"},
    **{"LOADER": _LOADER, "WRAP": _WRAP, "CUT": "(lambda rows: slice(None))"},
    **{"VALIDATE": "False", "THRESHOLDS": "20", "NAN": "'disable'", "BAR": "False"},
    **{"DETERMINISTIC": "True", "CHECK": "False", "EVERY": "50", "FILTER": "False"},
    **{"MORE": "accelerator_config={'non_blocking': True}", "FREE": "True"},
}
_COMPILE = "torch_compile=True, torch_compile_backend='hpu_backend'"


class Case(NamedTuple):
    """A program, and the setting of it that an audit finds."""

    program: str
    setting: str
    bad: str
    rule: str
    via: str
    good: str = ""


CASES = (
    Case(TRAINER, "BAR", "True", "item-waits", "to_item"),
    Case(TRAINER, "VALIDATE", "True", "unique-dynamic", "_tensor_validation"),
    Case(TRAINER, "DETERMINISTIC", "False", "bincount-dynamic", "_bincount"),
    Case(TRAINER, "THRESHOLDS", "None", "nonzero-dynamic", "_binary_clf_curve"),
    Case(TRAINER, "NAN", "'warn'", "item-waits", "_cast_and_nan_check_input"),
    Case(FABRIC, "CHECK", "True", "item-waits", "clip_gradients"),
    Case(TRANSFORMERS, "EVERY", "1", "item-waits", "_maybe_log_save_evaluate"),
    Case(TRANSFORMERS, "FILTER", "True", "item-waits", "_run_epoch"),
    Case(TRANSFORMERS, "MORE", "", "copy-to-card-blocks", "send_to_device"),
    Case(TRANSFORMERS, "MORE", "", "item-waits", "masking_utils", _COMPILE),
    Case(PLAIN, "READ", "torch.Tensor.item", "item-waits", ""),
    Case(PLAIN, "FREE", "False", "copy-to-card-blocks", ""),
    Case(PLAIN, "WRAP", "torch.nn.Sequential", "uncompiled", ""),
    Case(PLAIN, "MULTIPLE", "1", "dynamic-shapes", ""),
    Case(PLAIN, "LOADER", _LOADER.replace("=pad", "=pad_sequence"), "dynamic-shapes", "", _BUCKETS),
    Case(PLAIN, "CUT", "(lambda rows: slice(None, int(rows[0].sum()) // 8))", "recompilation", ""),
    Case(PLAIN, "LOADER", _LOADER.replace("True", "False"), "odd-last-batch", ""),
    Case(LIGHTNING, "REGIONS", "'none'", "uncompiled", ""),
    Case(TRANSFORMERS, "MORE", "", "uncompiled", "", _COMPILE),
    Case(ACCELERATE, "FREE", "False", "copy-to-card-blocks", "send_to_device"),
)


_NOT_IN_STEPS = ("odd-last-batch",)
"""Of the last batch, which is none of the steps that are judged."""


def _findings(program: str, settings: dict[str, str], folder: Path) -> list[dict[str, Any]]:
    for name, value in settings.items():
        program = program.replace(name, value)
    script, report = folder / "train.py", folder / "report.json"
    script.write_text(program)
    command = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "audit"]
    done = run(
        [*command, "--json", str(report), "--", sys.executable, str(script)],
        env={"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_COMPILE": "none"},
        cwd=folder,
        check=False,
        timeout=280,
    )
    assert report.exists(), done.stderr
    found: list[dict[str, Any]] = json.loads(report.read_text())["findings"]
    return found


@pytest.mark.slow_but("BAR-item-waits")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.setting}-{case.rule}")
def test_a_change_that_is_advised_helps(case: Case, tmp_path: Path) -> None:
    def of_case(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in found if each["rule"] == case.rule and case.via in each["via"]]

    before = of_case(_findings(case.program, _GOOD | {case.setting: case.bad}, tmp_path))
    assert before
    assert case.rule in _NOT_IN_STEPS or all(each["num_steps"] for each in before)
    assert all((each["fix"] in _FIXES.values()) == bool(case.via) for each in before)
    boundaries = re.search(r"\[[\d, ]+\]", before[0]["fix"])
    good = case.good.replace("BOUNDARIES", boundaries.group() if boundaries else "")
    assert not of_case(
        _findings(case.program, _GOOD | ({case.setting: good} if good else {}), tmp_path)
    )
