from __future__ import annotations

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi.deepspeed import library
from lightning_gaudi.deepspeed.engine.accumulation import stepped_by_user


def test_deepspeed_that_cannot_leave_the_step_to_the_user_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library.load()
    monkeypatch.delattr("deepspeed.runtime.constants.MANAGED_GRADIENT_ACCUMULATION")
    with pytest.raises(MisconfigurationException, match=r"ZeRO stage 2 needs deepspeed 0\.19\.4"):
        stepped_by_user({"zero_optimization": {"stage": 2}})
    config = {"zero_optimization": {"stage": 3}}
    assert stepped_by_user(config) == config
