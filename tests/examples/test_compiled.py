"""The scripts in `examples/` reach compiled, as by default, what they reach as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_examples import BY_NAME, _start_all, metric

NAMES = [*BY_NAME]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scripts_reach_compiled_what_they_reach_as_written(tmp_path: Path) -> None:
    found = []
    for choice in ("none", None):
        cwd = tmp_path / str(choice)
        cwd.mkdir()
        outputs = _start_all(NAMES, "hpu", cwd, {"LIGHTNING_GAUDI_COMPILE": choice})
        found.append({name: metric(output) for name, output in outputs.items()})
    assert found[1] == pytest.approx(found[0], rel=1e-5, abs=0)
