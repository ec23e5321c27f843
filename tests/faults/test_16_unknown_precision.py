"""A precision that there is not, or that a Gaudi has not."""

from __future__ import annotations

from collections.abc import Callable

import lightning.pytorch as pl
import pytest
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

SUPPORTED = ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")


@pytest.mark.parametrize("kind", [pl.Trainer, Fabric])
@pytest.mark.parametrize("precision", ["bf17-mixed", "64-true", "transformer-engine"])
def test_an_unknown_precision_is_answered_with_what_there_is(
    kind: type, precision: str, measured: Callable[[str], None]
) -> None:
    with pytest.raises(MisconfigurationException, match=f"precision='{precision}'") as caught:
        kind(accelerator="hpu", devices=1, precision=precision)
    assert all(repr(each) in str(caught.value) for each in SUPPORTED)
    measured(f"{kind.__name__}, {precision}")
