"""The simulated card meets every rule that it says it knows, when it is provoked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import _hpu_sim
import pytest
import torch
import torch.distributed as dist

from lightning_gaudi import simulator
from lightning_gaudi.simulator import rules
from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.tools.verify.programs import PROGRAMS

HPU = torch.device("hpu")
OF_OPERATORS = [
    rule
    for rule in table.RULES
    if not rule.operators[0].startswith(("hccl::", "graph::")) and rule.verdict is not Verdict.NOTED
]
SAID = [rule for rule in OF_OPERATORS if rule.verdict is not Verdict.WAITS]
COUNTED = [rule for rule in OF_OPERATORS if rule.verdict is Verdict.WAITS]


@pytest.fixture
def on_card(request: pytest.FixtureRequest) -> Iterator[Rule]:
    """The mode and the card that a rule is about."""
    rule: Rule = request.param
    settings = simulator.read_settings()
    if rule.cards:
        table.install(_hpu_sim, replace(settings, card=simulator.CARDS[rule.cards[0]]))
    _hpu_sim.set_lazy(rule.mode == "lazy")
    rules.forget_findings()
    rules.set_mode("warn")
    yield rule
    rules.forget_findings()
    _hpu_sim.set_lazy(False)
    _hpu_sim.reset_graph_cache()
    if rule.cards:
        table.install(_hpu_sim, settings)


def _each(chosen: list[Rule]) -> Any:
    return pytest.mark.parametrize("on_card", chosen, ids=lambda rule: rule.key, indirect=True)


def _said_by(program: Callable[[torch.device], object]) -> list[str]:
    """What is said of a program, which ends at the first refusal."""
    refusals = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(HPU)
        except rules.GaudiRuleError as error:
            refusals.append(str(error))
    return [finding.message for finding in rules.findings()] + refusals


@_each(SAID)
def test_a_rule_is_said_where_it_is_met(on_card: Rule) -> None:
    said = _said_by(PROGRAMS[on_card.key])
    [message] = [text for text in said if text.endswith(f"[{on_card.key}]")]
    assert on_card.what in message
    assert on_card.instead in message


@_each(COUNTED)
def test_a_wait_is_counted_and_not_said(on_card: Rule) -> None:
    rules.set_mode("off")
    _hpu_sim.reset_counters()
    PROGRAMS[on_card.key](HPU)
    assert sum(_hpu_sim.host_syncs().values()) >= 1


@_each([rule for rule in SAID if rule.verdict is Verdict.ON_CPU])
def test_a_fallback_is_counted_and_computed_if_nothing_is_said(on_card: Rule) -> None:
    rules.set_mode("off")
    _hpu_sim.reset_counters()
    _said_by(PROGRAMS[on_card.key])
    names = {name.partition(".")[0] for name in _hpu_sim.fallback_stats()}
    assert names & {operator.partition(".")[0] for operator in on_card.operators}
    assert _hpu_sim.host_syncs()


OF_COLLECTIVES = [
    rule
    for rule in table.RULES
    if rule.operators[0].startswith("hccl::") and rule.verdict is not Verdict.NOTED
]


@pytest.fixture
def group(on_card: Rule) -> Iterator[None]:
    """A group of one rank, with lazy collectives where the rule is about them."""
    _hpu_sim.set_lazy_collectives(on_card.when == "op_average_in_lazy_collective")
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    _hpu_sim.set_lazy_collectives(False)


@_each([rule for rule in OF_COLLECTIVES if rule.verdict is not Verdict.WAITS])
@pytest.mark.usefixtures("group")
def test_a_rule_of_collectives_is_said(on_card: Rule) -> None:
    if "complex-refused" in on_card.key or "variants" in on_card.key or "unsigned" in on_card.key:
        pytest.skip(
            "needs a tensor of a type that no card can hold: it is refused where it is made"
        )
    test_a_rule_is_said_where_it_is_met(on_card)


@_each([rule for rule in OF_COLLECTIVES if rule.verdict is Verdict.WAITS])
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:barrier.*using the device under current context")
def test_a_waiting_collective_is_counted(on_card: Rule) -> None:
    test_a_wait_is_counted_and_not_said(on_card)


def test_there_are_enough_rules_and_all_have_a_source() -> None:
    assert len(table.RULES) > 100
    assert all(rule.source for rule in table.RULES)


@pytest.mark.usefixtures("lazy")
def test_the_integer_of_an_infinity_is_no_value_beyond_32_bits() -> None:
    """transformers' T5 makes such ones of log(0), and drops them."""
    rules.forget_findings()
    rules.set_mode("error")
    x = torch.zeros(3, device="hpu").log().to(torch.int64) + 8
    assert torch.where(x < 0, 1, 0).tolist() == [1, 1, 1]
    with pytest.raises(rules.GaudiRuleError, match=r"the value 4294967296.*\[int64-as-int32\]"):
        torch.where(x < 0, 2**32, x)


_BIG = 2**32

_MAKES_BIG_INTEGERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x.add_(_BIG),
    "mul_": lambda x: x.add_(2).mul_(2**31),
    "fill_": lambda x: x.fill_(_BIG),
    "full": lambda x: torch.full((3,), _BIG, device="hpu"),
    "full_like": lambda x: torch.full_like(x, _BIG),
    "arange": lambda x: torch.arange(_BIG, _BIG + 3, device="hpu"),
    "a slice": lambda x: x[1:].fill_(_BIG),
    "an item": lambda x: x.__setitem__(1, _BIG),
    "masked_fill_": lambda x: x.masked_fill_(x == 0, _BIG),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1], device="hpu"), _BIG),
    "long": lambda x: (x.float() + float(_BIG)).long(),
    "copy_": lambda x: x.copy_(x.float() + float(_BIG)),
    "randint": lambda x: torch.randint(_BIG, _BIG + 9, (3,), device="hpu"),
    "random_": lambda x: x.random_(_BIG, _BIG + 9),
    "out=": lambda x: torch.add(x, _BIG, out=torch.empty_like(x)),
    "a list": lambda x: torch._foreach_add_([x, x.clone()], _BIG),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([1], device="hpu"), _BIG),
}


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("name", _MAKES_BIG_INTEGERS)
def test_an_integer_beyond_32_bits_is_found_wherever_it_is_made(name: str) -> None:
    x = torch.zeros(3, dtype=torch.int64, device="hpu")
    rules.forget_findings()
    rules.set_mode("error")
    with pytest.raises(rules.GaudiRuleError, match=r"the value 42949\d+.*\[int64-as-int32\]"):
        _MAKES_BIG_INTEGERS[name](x)


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        table.find("no-such-rule")


@pytest.mark.parametrize(("switch", "refuses"), [("1", False), ("true", False), ("0", True)])
def test_int64_is_copied_where_the_switch_keeps_it(
    monkeypatch: pytest.MonkeyPatch, switch: str, refuses: bool
) -> None:
    monkeypatch.setenv("PT_ENABLE_INT64_SUPPORT", switch)
    settings = simulator.read_settings()
    keys = {rule.key for rule in table.RULES if table._applies(rule, settings)}
    narrow = {"int64-as-int32", "int64-beyond-int32-refused"}
    assert keys & narrow == (narrow if refuses else set())
