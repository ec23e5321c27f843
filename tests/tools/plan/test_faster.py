"""Ways to run a program are ranked by samples a second, and those without estimate say why."""

from __future__ import annotations

from dataclasses import replace

from lightning_gaudi.tools.plan.cards import CARDS
from lightning_gaudi.tools.plan.faster import ranked, text
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.report import text as report
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request

GAUDI2 = CARDS["gaudi2"]
FOUND = Rehearsed(
    batch_size=8, peak_bytes=2**30, setup_bytes=0, num_cards=8, categories={}, is_lazy=True
)
COUNTED = Counted(
    flops=10**14,
    fused_bytes=10**12,
    product_bytes=4 * 10**11,
    collective_bytes={"all_reduce": 10**10},
    num_attentions=24,
    num_replicas=8,
    flops_of={"bfloat16": 10**14},
)
NOW = Planned(Request(devices=8), "", FOUND, COUNTED, {"gaudi2": 64})
TWICE = {"flops": 2 * 10**14, "fused_bytes": 2 * 10**12, "product_bytes": 8 * 10**11}
PLANS = [
    NOW,
    replace(
        NOW,
        change="batch 16",
        rehearsed=replace(FOUND, batch_size=16),
        counted=replace(COUNTED, **TWICE, flops_of={"bfloat16": 2 * 10**14}),
    ),
    replace(
        NOW,
        change="strategy deepspeed_stage_2",
        counted=replace(COUNTED, collective_bytes={"all_gather": 10**10}),
    ),
    replace(NOW, change="larger", rehearsed=replace(FOUND, peak_bytes=2**40)),
    replace(NOW, change="refused", rehearsed=None, error="It cannot.\nNo."),
]


def test_a_larger_batch_sends_as_much_and_gains() -> None:
    first, second, third, *others = ranked(GAUDI2, PLANS)
    assert (first.change, second.change) == ("batch 16", "")
    assert third.change == "strategy deepspeed_stage_2"
    assert {(each.change, each.why_not) for each in others} == {
        ("larger", "it does not fit"),
        ("refused", "It cannot."),
    }
    shown = text([GAUDI2, CARDS["a100"]], PLANS)
    assert shown.count("What would help most") == 1
    assert "no estimate: it does not fit" in shown


def test_a_whole_run_has_its_time_and_its_cost() -> None:
    shown = report(NOW, [GAUDI2, CARDS["a100"]], num_steps=65_000, price=2.0)
    (line,) = [each for each in shown.splitlines() if "65,000 steps" in each]
    low, high = (float(each) for each in line.split("which cost ")[1].split(" to "))
    # 8 cards for the hours of the range, of which the ratio is that of the fit.
    assert 0 < low < high
    assert " on 8 Gaudi 2, which cost " in line
    other = report(replace(NOW, counted=replace(COUNTED, num_attentions=0)), [GAUDI2])
    assert "Not as public runs were (Gaudi 2): it has no attention" in other
