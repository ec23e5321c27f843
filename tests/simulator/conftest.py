"""What several tests of the simulator need."""

from __future__ import annotations

from collections.abc import Iterator

import _hpu_sim
import pytest


@pytest.fixture
def lazy() -> Iterator[None]:
    """Lazy mode for a test, with an empty cache of recipes."""
    _hpu_sim.reset_graph_cache()
    _hpu_sim.set_lazy(True)
    yield
    _hpu_sim.set_lazy(False)
    _hpu_sim.set_lazy_collectives(False)
    _hpu_sim.reset_graph_cache()
