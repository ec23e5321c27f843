"""Of models in shards: what holds a card's peak, and how large their checkpoints are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lightning_gaudi.tools.plan.request import Rehearsed, Request
from tests.helpers.process import run
from tests.tools.plan.rehearsing import planned_peak, rehearse

SCRIPT = Path(__file__).with_name("sharded.py")
LAYER = 4 * (512 * 512 + 512)
WEIGHTS = 6 * LAYER

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "num_cards"),
    [("auto", 1), ("ddp", 2), ("fsdp", 2), ("fsdp2", 2), ("zero2", 2), ("zero3", 2)],
)
def test_a_plan_is_what_ranks_take_and_save(
    name: str, num_cards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "none")
    command = [sys.executable, str(SCRIPT), name, str(num_cards)]
    found = rehearse(tmp_path, command, Request(devices=num_cards))
    held = found.categories
    assert sum(held.values()) == found.peak_bytes
    is_whole = name in ("auto", "ddp")
    parts = 1 if is_whole else num_cards
    own = WEIGHTS / (1 if name == "zero2" else parts)  # ZeRO-2 has all weights on each card
    assert held["weights"] == pytest.approx(own, rel=0.01)
    # At the peak DDP has its one bucket, too; of FSDP most gradients are still to come, and the
    # whole ones of ZeRO wait until their bucket is reduced: two layers' of ZeRO-2, all of ZeRO-3.
    layers = {"ddp": 2 * 6, "fsdp": 2, "zero2": 3 + 2, "zero3": 3 + 6}
    gradients = layers.get(name, 6 / parts) * LAYER
    assert held["gradients"] == pytest.approx(gradients, rel=0.01)
    masters = WEIGHTS / parts if name == "zero2" else 0
    assert held["optimizer state"] == pytest.approx(2 * WEIGHTS / parts + masters, rel=0.01)
    gathered = {"fsdp": 2 * LAYER, "fsdp2": 3 * LAYER, "zero3": LAYER}.get(name, 0)
    # Of FSDP a layer and the one that is fetched before it is needed; of FSDP2 what one comes in,
    # too; of ZeRO-3 the first layer, whose gradients fill the bucket.
    assert held["gathered weights"] == pytest.approx(gathered, rel=0.01)
    assert held["activations and the rest"] < WEIGHTS * 1.02

    _assert_is_as_in_a_run(found, command, num_cards, tmp_path)


LATE = """
import sys

import torch

sys.path.insert(0, sys.argv[1])
import sharded


class Late(sharded.Model):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            batch = torch.compile(torch.tanh, backend="hpu_backend", fullgraph=True)(batch)
        return super().training_step(batch, batch_idx)


sharded.Model = Late
sharded.main("zero3", 2)
"""


def test_a_graph_may_be_compiled_while_a_plan_looks_for_the_holders_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler works on fake tensors, and fails where real ones come between."""
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "none")
    (tmp_path / "late.py").write_text(LATE)
    command = [sys.executable, "late.py", str(SCRIPT.parent)]
    found = rehearse(tmp_path, command, Request(devices=2))
    assert found.categories["weights"] == pytest.approx(WEIGHTS / 2, rel=0.01)


@pytest.mark.parametrize("name", ["fsdp_offload", "zero3_offload"])
def test_a_plan_is_what_ranks_hold_on_the_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_GAUDI_COMPILE", "none")
    command = [sys.executable, str(SCRIPT), name, "2"]
    found = rehearse(tmp_path, command, Request(devices=2))
    out = _assert_is_as_in_a_run(found, command, 2, tmp_path)
    (num_bytes,) = re.findall(r"HOST (\d+)", out)
    held = sum(size for what, size in found.host.items() if what.endswith("offloaded"))
    assert held == pytest.approx(int(num_bytes), rel=0.05)


def _assert_is_as_in_a_run(
    found: Rehearsed, command: list[str], num_cards: int, folder: Path
) -> str:
    """Compare peak and checkpoints; returns what the run says."""
    env = {"LIGHTNING_GAUDI_SIMULATE": str(num_cards), "LIGHTNING_GAUDI_RELIABILITY": "off"}
    out = run([*command, "saved"], env=env, cwd=folder, timeout=280).stdout
    (peak,) = re.findall(r"PEAK (\d+)", out)
    assert planned_peak(found) == pytest.approx(int(peak), rel=0.01)
    for kind, size in zip(("full", "weights"), found.checkpoint.values(), strict=True):
        path = folder / "saved" / kind
        files = [path] if path.is_file() else [*path.rglob("*")]
        saved = sum(each.stat().st_size for each in files if each.is_file())
        assert size == pytest.approx(saved, rel=0.02), kind
    return out
