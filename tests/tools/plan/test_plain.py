"""Loops without Lightning by their command: planned as they run, and nothing is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request, read_results
from tests.helpers.process import run
from tests.tools.plan.rehearsing import measured_peak, planned_peak, rehearse

SCRIPT = Path(__file__).with_name("plain_programs.py")
ALONE = (sys.executable, str(SCRIPT))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(SCRIPT))
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--num_processes=2", str(SCRIPT))


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "none")
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "0")


def check_as_it_runs(folder: Path, command: list[str], num_cards: int, rel: float = 0) -> Rehearsed:
    """Plans a program, and compares its peak with that of a run."""
    (folder / "model.pt").write_text("of a run that was long")
    before = {path.relative_to(folder): path.read_bytes() for path in folder.iterdir()}
    found = rehearse(folder, command, Request())
    own = {"result", "case", "result.claimed"}
    after = {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0].split(".")[0] not in own
    }
    assert after == before
    assert found.num_cards == num_cards
    assert sum(found.categories.values()) == found.peak_bytes
    peak = measured_peak(folder, [*command, "short"], num_cards)
    assert planned_peak(found) == pytest.approx(peak, rel=rel)
    return found


@pytest.mark.slow_but("loader")
@pytest.mark.parametrize(
    "name",
    [
        "loader",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                *("own_batches", "adversarial", "closures", "predicts", "accelerated"),
                *("hugging_face", "lora"),
            )
        ),
    ],
)
def test_a_plan_is_what_a_loop_takes(name: str, tmp_path: Path) -> None:
    found = check_as_it_runs(tmp_path, [*ALONE, name], 1)
    assert not found.has_strategy
    counted = Counted(**read_results(tmp_path / "result")[0]["counted"])
    assert counted.flops > 0
    assert found.has_loader == (name != "own_batches")
    accumulated = {"own_batches": 2, "accelerated": 2, "hugging_face": 2, "closures": 4}
    assert counted.num_micro_batches == accumulated.get(name, 1)
    assert bool(found.checkpoint) == (name != "predicts")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "zero2"])
def test_a_plan_is_what_the_first_rank_of_a_launcher_takes(name: str, tmp_path: Path) -> None:
    check_as_it_runs(tmp_path, [*TORCHRUN, name], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "devices"),
    [((*ACCELERATE, "accelerated"), None), ((*ALONE, "spawned"), None), ((*ALONE, "ddp"), 2)],
    ids=["accelerate", "spawn", "devices"],
)
def test_ranks_come_from_whoever_starts_them(
    command: tuple[str, ...], devices: int | None, tmp_path: Path
) -> None:
    found = rehearse(tmp_path, command, Request(devices=devices))
    assert found.num_cards == 2
    counted = Counted(**read_results(tmp_path / "result")[0]["counted"])
    assert counted.num_replicas == 2
    # In a ring of two ranks each sends what it has once.
    assert counted.collective_bytes["all_reduce"] == 4 * 4 * (512 * 512 + 512)


@pytest.mark.slow
def test_a_loop_in_batches_of_another_size(tmp_path: Path) -> None:
    found = rehearse(tmp_path, [*ALONE, "loader"], Request(batch_size=256))
    text = SCRIPT.read_text().replace("DataLoader(data, 32,", "DataLoader(data, 256,")
    script = tmp_path / "larger.py"
    script.write_text(text.replace("(320,", "(2560,"))
    assert found.batch_size == 256
    assert planned_peak(found) == measured_peak(
        tmp_path, [sys.executable, str(script), "loader"], 1
    )


LIGHTNING = """
import torch
print(torch.ones(2, device="hpu").sum())  # before anything of Lightning's
"""
TRAINER = """
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
Trainer(max_epochs=1, devices=2).fit(BoringModel())
"""
FABRIC = """
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
fabric = Fabric(devices=2)
fabric.launch()
model = torch.nn.Linear(32, 2)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in fabric.setup_dataloaders(DataLoader(torch.randn(64, 32), batch_size=1)):
    fabric.backward(model(batch).square().mean())
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [TRAINER, FABRIC], ids=["trainer", "fabric"])
def test_a_card_may_be_used_before_lightning_runs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LIGHTNING + text)
    found = rehearse(tmp_path, [sys.executable, str(path)], Request(precision="bf16-mixed"))
    assert (found.num_cards, found.batch_size, found.has_strategy) == (2, 1, True)
    assert found.categories["weights"] == 4 * (32 * 2 + 2)


LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10**9):
    for batch in DataLoader(torch.randn(64, 8), 4):
        model(batch.to(DEVICE)).sum().backward()
        optimizer.step()
"""
ON_CARD = LOOP.replace("DEVICE", '"hpu"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "request_", "error"),
    [
        (LOOP.replace("DEVICE", '"cpu"'), Request(), r'trains on the CPU: its SGD .*"hpu"'),
        (ON_CARD, Request(strategy="ddp"), r"^ValueError: --strategy sets .* Leave it out"),
        (ON_CARD, Request(precision="bf16-mixed"), r"^ValueError: --precision sets"),
        (ON_CARD, Request(devices=2), r"--devices 2 asks .* process group has 1.*torchrun"),
        (ON_CARD.replace("optimizer.step()", "raise KeyError('no')"), Request(), r"no.*line 9\)"),
        (ON_CARD.partition("for epoch")[0], Request(), "took no batch of a torch DataLoader"),
        (ON_CARD.replace("(64, 8)", "(8, 8)").replace("10**9", "1"), Request(), "took 2 steps"),
    ],
)
def test_what_cannot_be_planned_says_why(
    text: str, request_: Request, error: str, tmp_path: Path
) -> None:
    path, result = tmp_path / "train.py", tmp_path / "result"
    path.write_text(text)
    asked = Request(**{**vars(request_), "result": str(result)})
    env = asked.environment(tmp_path / "case") | {"LIGHTNING_GAUDI_RELIABILITY": "off"}
    env |= {"LIGHTNING_GAUDI_SIMULATE": "8", "LIGHTNING_GAUDI_SIMULATE_DRY": "1"}
    done = run([sys.executable, str(path)], env=env, cwd=tmp_path, check=False)
    assert done.returncode == 1
    (found,) = read_results(result)
    assert re.search(error, found["error"], re.DOTALL), found
