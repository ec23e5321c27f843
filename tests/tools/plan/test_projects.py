"""Programs that share nothing with our recipes are planned as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi.tools.plan.request import Request
from tests.tools.plan.rehearsing import MEASURED, measured_peak, planned_peak, rehearse
from tests.tools.projects import ARGUMENTS, FOLDER, NUM_CARDS, PROJECTS


@pytest.mark.slow_but("packed", "detection")
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_takes_what_is_planned(name: str, tmp_path: Path) -> None:
    command = [*MEASURED, str(FOLDER / f"{name}.py"), *ARGUMENTS.get(name, ())]
    planned = planned_peak(rehearse(tmp_path, command, Request()))
    measured = measured_peak(tmp_path, command, NUM_CARDS.get(name, 1))
    assert planned == pytest.approx(measured, rel=0.01)
