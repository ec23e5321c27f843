"""The vendor's tools that find changing shapes; no part of the plugin uses them."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi import vendor

LENGTHS = (3, 5, 5, 3, 5)


def _tool(name: str) -> Any:
    return getattr(importlib.import_module("habana_frameworks.torch.utils.experimental"), name)


def _batches() -> list[list[Tensor]]:
    return [[torch.zeros(2, length), torch.zeros(length)] for length in LENGTHS]


def test_data_dynamicity_counts_the_shapes_of_batches() -> None:
    counts = _tool("data_dynamicity")(_batches())
    assert counts == {((2, 3), (3,)): 2, ((2, 5), (5,)): 3}


def test_const_shape_dataloader_gives_batches_of_one_shape() -> None:
    loader = _tool("const_shape_dataloader")(_batches(), 2)
    assert [batch[0].shape for batch in loader] == [(2, 5), (2, 5)]


def test_detection_reports_the_steps_of_new_shapes(tmp_path: Path) -> None:
    """In lazy mode, whose graphs it counts. The lengths are those of no other test."""
    if not vendor.is_lazy():
        pytest.skip("needs lazy mode: PT_HPU_LAZY_MODE=1 (`make test-gaudi` runs both modes)")
    model = nn.Sequential(nn.Tanh()).to("hpu")
    stem = str(tmp_path / "out")
    model = _tool("detect_recompilation_auto_model")(model, waittime=0.2, csv_out=stem)
    for length in (521, 521, 523, 523):
        model(torch.ones(3, length).to("hpu"))
    model.analyse_dynamicity()
    with Path(f"{stem}_1.csv").open(newline="") as file:
        steps = {(row["Step"], row["Recompiling modules"]) for row in csv.DictReader(file)}
    assert steps == {(step, name) for step in "02" for name in ("Net", "Net/0")}
    with Path(f"{stem}_2.csv").open(newline="") as file:
        counts = {row["Module name"]: int(row["Recompile count"]) for row in csv.DictReader(file)}
    assert counts == {"Net": 2, "Net/0": 2}
