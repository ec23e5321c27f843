"""What several tests of the simulator need."""

from __future__ import annotations

from collections.abc import Iterator

import _hpu_sim
import pytest

from lightning_gaudi._patches import device_names
from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.settings import RULES


@pytest.fixture(autouse=True, scope="module")
def _rules_are_silent_in_what_a_module_starts() -> Iterator[None]:
    """Of processes that fixtures of a module start, the environment; see below."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RULES, "off")
        yield


@pytest.fixture(autouse=True)
def _rules_are_silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These tests do what a card would mind; those of the rules ask for them."""
    monkeypatch.setenv(RULES, "off")
    rules.set_mode("off")
    yield
    rules.set_mode("warn")


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lazy mode for a test, with an empty cache of recipes."""
    # Of the card alone: the plugin goes by the environment.
    monkeypatch.setattr(device_names, "has_graphs", lambda: True)
    _hpu_sim.reset_graph_cache()
    _hpu_sim.set_lazy(True)
    yield
    _hpu_sim.set_lazy(False)
    _hpu_sim.set_lazy_collectives(False)
    _hpu_sim.reset_graph_cache()
