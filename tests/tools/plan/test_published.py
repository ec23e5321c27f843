"""A plan stands beside what was published, and hides none of it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from lightning_gaudi.published import Figure, NoRoom, PublishedRun
from lightning_gaudi.tools.plan.cards import CARDS
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.published import beside, rooms, step_seconds
from lightning_gaudi.tools.plan.published_text import published_dict, published_text
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request

GAUDI2, A100 = CARDS["gaudi2"], CARDS["a100"]
BLOG = "a blog"
FIGURES = (
    Figure("train_samples_per_s", 20.0, "samples/s", "Gaudi 2", BLOG, 1),
    Figure("train_seconds", 400.0, "s", "Gaudi 2", BLOG, 1),
    Figure("val/f1", 0.9, "", "Gaudi 2", BLOG, 1),
    Figure("train_samples_per_s", 8.0, "samples/s", "A100 80GB", BLOG, 16),
    Figure("train_samples_per_s", 1.0, "samples/s", "Abacus", BLOG, 1),
)
RUN = PublishedRun(
    name="big_8x",
    title="a large model on eight cards",
    num_cards=8,
    num_steps=1000,
    figures=FIGURES,
    no_room=(NoRoom("Gaudi", 1, BLOG),),
    differing=("data.source is embedded, not hub",),
)
FOUND = Rehearsed(batch_size=1, peak_bytes=2**30, setup_bytes=0, held_bytes=10**9)
COUNTED = Counted(
    flops=10**13, moved_bytes=10**12, num_micro_batches=2, num_replicas=8, weight_bytes=2 * 10**9
)
LARGEST = {"gaudi1": 0, "gaudi2": 64, "a100": 12}
PLANNED = Planned(Request(devices=8), "", FOUND, COUNTED, LARGEST, published=RUN)


def test_rates_and_times_are_those_of_a_planned_step() -> None:
    rate, whole, score, other_batch, no_card = beside(RUN, PLANNED.request, FOUND, COUNTED)
    # 8 groups of cards with 2 micro-batches of a sample, in a step that is bound by arithmetic.
    assert rate.least == pytest.approx(16 / (10**13 / GAUDI2.bf16_flops))
    assert rate.unfused == pytest.approx(16 / (10**12 / GAUDI2.bandwidth))
    assert rate.errors == pytest.approx((rate.least / 20 - 1, rate.unfused / 20 - 1))
    assert whole.unfused == pytest.approx(1000 * 10**12 / GAUDI2.bandwidth)
    assert [each.least for each in (score, other_batch, no_card)] == [None] * 3
    assert score.why_not == "it is not the time of a planned step"
    assert other_batch.why_not == "of batch 16: plan with --batch-size 16"
    assert no_card.why_not == "no such card is known"
    (first, *_) = beside(RUN, Request(devices=1), FOUND, COUNTED)
    assert (first.errors, first.why_not) == (None, "of 8 cards: plan with --devices 8")


def test_weights_that_are_read_once_a_token_bound_a_step() -> None:
    seconds, _ = step_seconds(GAUDI2, FOUND, replace(COUNTED, flops=1))
    assert seconds == pytest.approx(2 * 10**9 / GAUDI2.bandwidth)
    texts = replace(RUN, figures=(Figure("latency_seconds", 3.0, "s", "Gaudi 2", BLOG, 1),))
    (latency,) = beside(texts, PLANNED.request, FOUND, replace(COUNTED, flops=1))
    assert latency.least == seconds


def test_what_is_sent_bounds_a_step_by_one_direction_of_the_links() -> None:
    """A Gaudi 2 sends 300 GB/s while it gets as much: 24 ports of 100 Gb/s."""
    sent = replace(COUNTED, flops=1, collective_bytes={"all_reduce": 2 * 10**11, "send": 10**11})
    assert step_seconds(GAUDI2, FOUND, sent)[0] == pytest.approx(1.0)


def test_what_fitted_and_what_did_not_is_judged() -> None:
    found = {(each.hardware, each.batch_size): each for each in rooms(RUN, LARGEST)}
    assert found["Gaudi", 1].agrees is True  # it did not fit, and none is planned to
    assert found["Gaudi 2", 1].agrees is True
    assert found["A100 80GB", 16].agrees is False  # it did fit, and 12 are planned to
    assert found["Abacus", 1].agrees is None
    assert [each.agrees for each in rooms(RUN, {"gaudi2": 4})].count(None) == 3


def test_all_figures_are_printed() -> None:
    text = "\n".join(published_text(PLANNED))
    for words in (
        "published/big_8x: a large model on eight cards",
        "no estimate: of batch 16",
        "no estimate: it is not the time of a planned step",
        "batch 1 did not fit Gaudi, as published; planned: none fits, which agrees",
        "batch 16 fitted A100 80GB, as published; planned: up to 12, which DIFFERS",
        "batch 1 fitted Abacus, as published; not planned for it",
        "planned with other settings: data.source is embedded, not hub",
        "source: a blog",
    ):
        assert words in text
    assert sum(f"{each.name} {each.value:g}" in text for each in FIGURES) == len(FIGURES)
    found = published_dict(PLANNED)
    assert found is not None
    assert [each["figure"] for each in found["figures"]] == [asdict(each) for each in FIGURES]
    assert published_text(replace(PLANNED, published=None)) == []


def test_a_run_comes_back_from_plain_data() -> None:
    assert PublishedRun.of(asdict(RUN)) == RUN


def test_figures_of_a_card_without_fused_attention_stand_beside_its_own_plan() -> None:
    figures = (Figure("latency_seconds", 3.0, "s", "Gaudi", BLOG, 1), *FIGURES[:1])
    run = replace(RUN, figures=figures, no_room=())
    fused = replace(FOUND, has_fused_attention=True)
    first, second = beside(run, PLANNED.request, fused, COUNTED)
    assert first.why_not == "its attention is not fused there: plan with --cards gaudi1"
    assert second.least is not None
    alone = replace(PLANNED, on="Gaudi 1", largest={"gaudi1": 3}, published=run)
    text = "\n".join(published_text(alone))
    assert "latency_seconds 3" in text
    assert "train_samples_per_s" not in text
