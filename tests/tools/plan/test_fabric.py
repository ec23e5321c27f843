"""Loops of the user's, written with Fabric: planned as they run, and nothing of them is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lightning_gaudi.tools.plan.request import Counted, Request, read_results
from tests.helpers.process import run
from tests.tools.plan.rehearsing import MEASURED, measured_peak, planned_peak, rehearse

SCRIPT = Path(__file__).with_name("loop.py")
WEIGHTS = 6 * 4 * (512 * 512 + 512)

LOOP = """
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

fabric = Fabric(accelerator="auto", devices=1)
fabric.launch()
model, other = nn.Linear(512, 512), nn.Linear(512, 512)
MODEL = fabric.setup(model, torch.optim.Adam(model.parameters()))
loader = fabric.setup_dataloaders(DataLoader(torch.randn(160, 512), batch_size=16))
"""

TRAINED = LOOP.replace("MODEL", "model, optimizer")
STEP = """
for batch in loader:
    loss = model(batch).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
ACCUMULATED = """
other, second = fabric.setup(other, torch.optim.SGD(other.parameters()))
for number, batch in enumerate(loader):
    loss = other(model(batch)).square().mean()
    fabric.backward(loss)
    if number % 2:
        for each in (optimizer, second):
            each.step()
            each.zero_grad()
"""
PEAK = 'print("PEAK of rank 0:", torch.hpu.memory_stats()["MaxInUse"])\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_cards"),
    [("auto", 1), ("ddp", 2), ("fsdp", 2), ("fsdp2", 2), ("zero2", 2), ("zero3", 2)],
)
def test_a_plan_is_what_a_loop_takes_and_saves(
    name: str, num_cards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "none")
    command = [sys.executable, str(SCRIPT), name, str(num_cards)]
    found = rehearse(tmp_path, [*command, "not-there"], Request(devices=num_cards))
    assert not (tmp_path / "not-there").exists()
    assert found.batch_size == 16
    assert sum(found.categories.values()) == found.peak_bytes
    parts = num_cards if name in ("fsdp", "fsdp2", "zero3") else 1
    assert found.categories["weights"] == pytest.approx(WEIGHTS / parts, rel=0.01)

    env = {"LIGHTNING_GAUDI_SIMULATE": str(num_cards), "LIGHTNING_GAUDI_RELIABILITY": "off"}
    out = run([*command, "saved"], env=env, cwd=tmp_path, timeout=280).stdout
    (peak,) = re.findall(r"PEAK (\d+)", out)
    assert planned_peak(found) == int(peak)
    # DeepSpeed saves no weights alone.
    kinds = ("full",) if name.startswith("zero") else ("full", "weights")
    for kind, size in zip(kinds, found.checkpoint.values(), strict=True):
        path = tmp_path / "saved" / kind
        files = [path] if path.is_file() else [*path.rglob("*")]
        saved = sum(each.stat().st_size for each in files if each.is_file())
        assert size == pytest.approx(saved, rel=0.02), kind


@pytest.mark.slow
def test_an_example_is_planned_in_other_batches(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "fabric_loop.py"
    found = rehearse(tmp_path, [sys.executable, str(script)], Request(batch_size=256))
    command = (str(script), "--batch_size", "256", "--max_epochs", "2", "--accelerator", "hpu")
    peak = measured_peak(tmp_path, [*MEASURED, *command], 1)
    assert found.batch_size == 256
    assert planned_peak(found) == pytest.approx(peak, rel=0.01)


@pytest.mark.slow
def test_what_runs_behind_the_steps_is_planned(tmp_path: Path) -> None:
    """An evaluation behind five epochs, which keeps all its outputs; what is saved is not there."""
    text = TRAINED + "for epoch in range(5):" + STEP.replace("\n", "\n    ")
    text += (
        '\nfabric.save("saved.ckpt", {"model": model})\nfabric.load("saved.ckpt")\n'
        "with torch.no_grad():\n    kept = [model(batch).repeat(64, 1) for batch in loader]\n"
        + PEAK
    )
    path = tmp_path / "train.py"
    path.write_text(text)
    found = rehearse(tmp_path, [sys.executable, str(path)], Request())
    assert not (tmp_path / "saved.ckpt").exists()
    out = run([sys.executable, str(path)], env={"LIGHTNING_GAUDI_SIMULATE": "1"}, cwd=tmp_path)
    peak = int(re.findall(r"PEAK of rank 0: (\d+)", out.stdout)[0])
    assert planned_peak(found) == pytest.approx(peak, rel=1e-3)
    assert found.peak_bytes > 10 * 64 * 16 * 512 * 4


@pytest.mark.slow
def test_a_step_of_two_optimizers_and_two_batches_is_counted_once(tmp_path: Path) -> None:
    text = TRAINED + ACCUMULATED
    path = tmp_path / "train.py"
    path.write_text(text)
    found = rehearse(tmp_path, [sys.executable, str(path)], Request())
    assert found.categories["weights"] == 2 * 4 * (512 * 512 + 512)
    counted = Counted(**read_results(tmp_path / "result")[0]["counted"])
    assert counted.num_micro_batches == 2
    # Two layers, forward and backward, without the gradient of the batch itself.
    assert counted.flops == 2 * 2 * 16 * 512 * 512 * 5


@pytest.mark.slow
def test_batches_that_a_program_keeps_end_it_too(tmp_path: Path) -> None:
    text = TRAINED + "from itertools import cycle\n" + STEP.replace("in loader", "in cycle(loader)")
    path = tmp_path / "train.py"
    path.write_text(text)
    found = rehearse(tmp_path, [sys.executable, str(path)], Request())
    assert found.categories["optimizer state"] == pytest.approx(2 * WEIGHTS / 6, rel=0.01)


@pytest.mark.slow
def test_what_only_predicts_is_planned(tmp_path: Path) -> None:
    text = LOOP.replace("MODEL", "model").replace(", torch.optim.Adam(model.parameters())", "")
    text += "model.eval()\nwith torch.inference_mode():\n    [model(batch) for batch in loader]\n"
    path = tmp_path / "predict.py"
    path.write_text(text)
    found = rehearse(tmp_path, [sys.executable, str(path)], Request(batch_size=8))
    assert found.batch_size == 8
    assert found.categories["gradients"] == 0
    assert found.checkpoint == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (TRAINED + STEP.replace("model(batch)", "model(batch[batch > 0])"), r"train\.py, line 14"),
        (TRAINED + "raise KeyError('no such thing')\n", "KeyError: 'no such thing'.*line 12"),
        (
            TRAINED + "model(torch.randn(2, 512, device=fabric.device))\n",
            "no batch of a torch Data",
        ),
        (
            LOOP.replace("MODEL = fabric.setup(model, ", "optimizer = (")
            + "model = fabric.setup(model)"
            + STEP,
            "Adam takes a step, and Fabric does not know.*line 16",
        ),
        (TRAINED.replace("160", "32") + STEP, "took 2 steps, and 3 are needed"),
    ],
)
def test_what_cannot_be_planned_says_why(text: str, error: str, tmp_path: Path) -> None:
    path, result, request = (tmp_path / name for name in ("train.py", "result", "case"))
    path.write_text(text)
    env = Request(result=str(result)).environment(request) | {"LIGHTNING_GAUDI_RELIABILITY": "off"}
    env |= {"LIGHTNING_GAUDI_SIMULATE": "1", "LIGHTNING_GAUDI_SIMULATE_DRY": "1"}
    done = run([sys.executable, str(path)], env=env, cwd=tmp_path, check=False)
    assert done.returncode == 1
    (found,) = read_results(result)
    assert re.search(error, found["error"], re.DOTALL), found
