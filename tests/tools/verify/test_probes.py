"""Every rule has a probe, or a reason why it has none, and the probes read what is there."""

from __future__ import annotations

import pytest
import torch

from lightning_gaudi.simulator import acting
from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.rules.rule import Verdict
from lightning_gaudi.tools.verify import expectations
from lightning_gaudi.tools.verify.probes import PROBES, REASONS, Signal, probe_of
from lightning_gaudi.tools.verify.readings import is_behind, read

HPU = torch.device("hpu")


def test_every_rule_has_a_probe_or_a_reason() -> None:
    keys = [rule.key for rule in table.RULES]
    assert [key for key in keys if (key in PROBES) == (key in REASONS)] == []
    assert set(PROBES) | set(REASONS) == set(keys)
    assert len(PROBES) >= 85
    assert all(len(reason) > 20 for reason in REASONS.values())


def test_a_new_rule_without_a_program_fails() -> None:
    new = table.RULES[0].__class__("new", Verdict.ON_CPU, ("aten::take",), "w", "i.", "s")
    with pytest.raises(KeyError, match="new"):
        probe_of(new)


def test_a_simulated_card_acts_on_what_is_read_of_numbers() -> None:
    """Without that, a probe of numbers would find a change where there is none."""
    of_numbers = {
        key
        for key, probe in PROBES.items()
        if probe.signal in (Signal.DEMOTED, Signal.AS_SAID)
        and not probe.on_card_alone
        and not key.startswith("graph-")
    }
    assert of_numbers == acting.ACTED


def test_all_probes_of_one_card_read_what_the_table_says() -> None:
    keys = expectations.keys_of("gaudi2", "1.24", "eager", 1, is_simulated=True)
    readings = {key: read(PROBES[key], HPU).found for key in keys}
    assert readings == {key: PROBES[key].signal.value for key in keys}
    assert len(keys) > 80


class _Device:
    """A queue of work, and a clock that both sides see."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy_until = 0.0

    def add(self) -> None:
        self.busy_until = max(self.now, self.busy_until) + 0.05

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until)

    def call(self, *, waits: bool) -> None:
        self.now += 0.001
        if waits:
            self.synchronize()
        self.busy_until = max(self.now, self.busy_until) + 0.0001


@pytest.mark.parametrize("waits", [True, False])
def test_a_wait_is_seen_by_time(waits: bool) -> None:
    device = _Device()
    found = is_behind(
        device.add, lambda: device.call(waits=waits), device.synchronize, lambda: device.now
    )
    assert found is waits
