from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_gaudi.simulator
from lightning_gaudi._core.precision import autocast_ops

_SOURCE = Path(lightning_gaudi.simulator.__file__).parent / "csrc" / "aten" / "autocast.cpp"


@pytest.mark.parametrize(
    ("ours", "simulated"),
    [
        (autocast_ops.LOWER_PRECISION_OPS, "kLowerPrecision"),
        (autocast_ops.FP32_OPS, "kFp32"),
        (autocast_ops.PROMOTED_OPS, "kPromote"),
    ],
)
def test_lists_are_those_of_the_simulated_device(ours: str, simulated: str) -> None:
    listed = re.search(rf"const Names {simulated}{{(.*?)}};", _SOURCE.read_text(), re.DOTALL)
    assert listed is not None
    assert re.findall(r'"(\w+)"', listed[1]) == ours.split()
