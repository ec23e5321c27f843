"""More devices than the server's eight cards, in each way that they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi import vendor


@pytest.mark.parametrize("kind", [pl.Trainer, Fabric])
@pytest.mark.parametrize("devices", [9, "9", [0, 8], "0,9", list(range(9))], ids=str)
def test_too_many_devices_are_refused_at_once(
    kind: type, devices: Any, measured: Callable[[str], None]
) -> None:
    assert vendor.device_count() == 8
    with pytest.raises(MisconfigurationException, match="this machine has 8 HPUs") as caught:
        kind(accelerator="hpu", devices=devices)
    assert f"devices={devices!r}" in str(caught.value)
    measured(f"{kind.__name__}(devices={devices!r})")
