"""What a rule advises is applied, and the rule is met no more."""

from __future__ import annotations

import warnings
from typing import Any

import _hpu_sim
import pytest
import torch
from torch.utils import _pytree

from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.tools.verify.programs import PROGRAMS
from tests.simulator.rules import remedies, test_card
from tests.simulator.rules.test_card import group, on_card  # noqa: F401, fixtures

CPU, HPU = torch.device("cpu"), torch.device("hpu")


def _each(chosen: list[Rule], programs: dict[str, tuple[remedies.Remedy, ...]]) -> Any:
    cases = [
        pytest.param(rule, program, id=f"{rule.key}-{number}")
        for rule in chosen
        for number, program in enumerate(programs[rule.key])
    ]
    return pytest.mark.parametrize(("on_card", "remedy"), cases, indirect=["on_card"])


def _tensors(result: object) -> list[torch.Tensor]:
    found = [each for each in _pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    return [each.detach().cpu() for each in found]


def _apply(remedy: remedies.Remedy, rule: Rule) -> list[torch.Tensor]:
    """Runs a remedy on the card: the rule is not met, nor another that costs as much."""
    rules.forget_findings()
    _hpu_sim.reset_counters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = remedy(HPU)
        waits, fallbacks = set(_hpu_sim.host_syncs()), set(_hpu_sim.fallback_stats())
    said = {each.rule for each in rules.findings()}
    assert rule.key not in said
    assert said <= {remedies.STILL.get(rule.key)}, rules.findings()
    assert not fallbacks
    if rule.verdict in (Verdict.WAITS, Verdict.DYNAMIC):
        assert not waits
    return _tensors(result)


@_each(test_card.OF_OPERATORS, remedies.OF_OPERATORS)
def test_a_rule_is_met_no_more_where_its_advice_is_followed(
    on_card: Rule,  # noqa: F811
    remedy: remedies.Remedy,
) -> None:
    found = _apply(remedy, on_card)
    if on_card.key in remedies.RANDOM:
        return
    for ours, reference in zip(found, _tensors(remedy(CPU)), strict=True):
        torch.testing.assert_close(ours, reference)
    if on_card.key in remedies.EQUAL:
        expected = _tensors(PROGRAMS[on_card.key](CPU))
        for ours, reference in zip(found, expected, strict=False):
            torch.testing.assert_close(ours, reference, check_dtype=False)


@_each(
    [rule for rule in test_card.OF_COLLECTIVES if rule.key in remedies.OF_COLLECTIVES],
    remedies.OF_COLLECTIVES,
)
@pytest.mark.usefixtures("group")
def test_a_collective_is_taken_where_its_rule_s_advice_is_followed(
    on_card: Rule,  # noqa: F811
    remedy: remedies.Remedy,
) -> None:
    assert _apply(remedy, on_card)


def test_every_rule_that_is_said_has_a_remedy() -> None:
    of_collectives = {rule.key for rule in test_card.OF_COLLECTIVES}
    assert {rule.key for rule in test_card.OF_OPERATORS} == set(remedies.OF_OPERATORS)
    assert of_collectives - set(remedies.OF_COLLECTIVES) == set(remedies.ELSEWHERE)
    assert all(rule.verdict is not Verdict.NOTED for rule in test_card.OF_OPERATORS)
