"""Step times are what their script writes of public figures, and hold where they are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lightning_gaudi.tools.plan import fitted
from lightning_gaudi.tools.plan.request import CONVOLUTION, Counted, Request, read_results
from lightning_gaudi.tools.plan.step_times import DECODING, TRAINING, as_public_runs
from scripts.step_times import count, fit, registries
from scripts.step_times.rule import LEAST_SECONDS, read, why_no_training
from tests.helpers.process import run
from tests.scripts import sending

ROOT = Path(__file__).parents[2]


@cache
def _judged() -> tuple[dict[tuple[str, str], fit.Fit], list[fit.Figure]]:
    return fit.judged(fit.training_figures() + fit.decoding_figures())


def test_what_a_plan_reads_is_what_the_script_writes() -> None:
    fits, figures = _judged()
    assert fit.FITTED.read_text() == fit.data(fits)
    assert fit.PAGE.read_text() == fit.page(figures, fits)
    assert fit.REPRINT.read_text() == fit.reprint(figures)


@pytest.mark.slow
def test_the_picture_is_what_the_script_draws() -> None:
    assert fit.PICTURE.read_text() == fit.picture(_judged()[1])


@pytest.mark.parametrize(
    ("kind", "num_figures", "num_models", "share", "median"),
    [(TRAINING, 60, 12, 0.80, 0.12), (DECODING, 60, 12, 0.90, 0.10)],
)
def test_figures_are_estimated_without_their_model(
    kind: str, num_figures: int, num_models: int, share: float, median: float
) -> None:
    used = [each for each in _judged()[1] if each.kind == kind and not each.why_not]
    errors = np.array([abs(each.error) for each in used])
    assert len(used) >= num_figures
    assert len({each.body for each in used}) >= num_models
    assert np.mean(errors <= 0.25) >= share
    assert np.median(errors) <= median


_COUNTED = [
    each
    for each in fit.training_figures() + fit.decoding_figures()
    if each.counted and "faster" not in each.why_not
]


@pytest.mark.parametrize(
    "figure",
    _COUNTED,
    ids=lambda figure: "-".join(
        figure.row[name] for name in ("card", "model", "cards", "batch", "release")
    ),
)
def test_no_published_time_is_less_than_the_least_that_is_planned(figure: fit.Figure) -> None:
    assert figure.least_seconds <= figure.seconds


def test_a_figure_counts_by_what_it_says_and_not_by_its_model() -> None:
    rows = read("training")
    row = next(each for each in rows if not why_no_training(each, rows))
    samples = LEAST_SECONDS * float(row["samples_per_s"])
    changed: list[tuple[Mapping[str, str], str]] = [
        ({"kind": "vision"}, "vision"),
        ({"samples": str(samples * 0.99)}, "taken over 10 s"),
        ({"release": "1.9"}, "release 1.9"),
        ({"release": "1.10"}, ""),
    ]
    for values, why in changed:
        assert why_no_training({**row, **values}, rows) == why
    copied = {**row, "card": "gaudi3"}
    original = {**row, "card": "gaudi2"}
    assert why_no_training(copied, [original]) == "a copy of the Gaudi 2's"
    assert why_no_training(copied, [{**original, "samples_per_s": "1.0"}]) == ""


TEXT = Counted(
    flops=10**14,
    fused_bytes=10**12,
    product_bytes=4 * 10**11,
    num_attentions=24,
    flops_of={"bfloat16": 10**14},
)


def test_an_estimate_is_the_sum_of_counts_by_their_rates() -> None:
    rates = fitted.FITS[TRAINING, "gaudi2"].rates
    sent = replace(TEXT, collective_bytes={"all_reduce": 10**9})
    found = as_public_runs("gaudi2", sent, 8)
    wanted = rates["operations"] * 1e14 + rates["memory"] * 6e11 + rates["reduced"] * 1e9
    assert found.seconds == pytest.approx(wanted)
    assert found.low == pytest.approx(fitted.FITS[TRAINING, "gaudi2"].low * wanted)
    gathering = replace(sent, collective_bytes={"all_gather": 10**9})
    slower = as_public_runs("gaudi2", gathering, 8)
    assert slower.seconds is not None
    assert slower.seconds - wanted == pytest.approx(
        1e9 * (rates["reduced and gathered"] - rates["reduced"])
    )


@pytest.mark.parametrize(
    ("card", "counted", "num_cards", "why"),
    [
        ("a100", TEXT, 1, "no Gaudi"),
        ("gaudi2", replace(TEXT, flops=0, flops_of={}), 1, "operations cannot be counted"),
        ("gaudi2", replace(TEXT, flops_of={"float32": 10**14}), 1, "computes in float32"),
        ("gaudi2", replace(TEXT, flops_of={"float8_e4m3fn": 10**14}), 1, "in float8_e4m3fn"),
        (
            "gaudi2",
            replace(TEXT, flops_of={"bfloat16": 10**14, CONVOLUTION: 10**14}),
            1,
            "it convolves",
        ),
        ("gaudi2", replace(TEXT, num_attentions=0), 1, "it has no attention"),
        ("gaudi2", TEXT, 16, "16 cards are more than a server"),
        ("gaudi2", replace(TEXT, num_cross_attentions=12), 1, "as an encoder-decoder does"),
        ("gaudi2", replace(TEXT, is_trained=False, num_passes=1), 1, "neither trains nor"),
        ("gaudi1", replace(TEXT, is_trained=False, num_passes=99), 8, "no public run of this kind"),
        ("gaudi2", replace(TEXT, fused_bytes=10**14), 1, "operations for each byte"),
        ("gaudi2", replace(TEXT, flops=10**9, fused_bytes=10**7), 1, "operations of a batch"),
    ],
)  # fmt: skip
def test_there_is_no_estimate_outside_of_what_was_fitted(
    card: str, counted: Counted, num_cards: int, why: str
) -> None:
    found = as_public_runs(card, counted, num_cards)
    assert found.seconds is None
    assert why in found.why_not


RUNS = registries.runs()
REFUSED = {
    "llama_7b_lora_alpaca_fp8_8x": "it computes in float8_e4m3fn",
    "llama_3_1_8b_lora_alpaca_fp8_8x": "it computes in float8_e4m3fn",
    "mistral_7b_lora_alpaca_fp8_1x": "it computes in float8_e4m3fn",
    "llama_7b_lora_alpaca_ulysses_8x": "it sends by all_to_all",
    "t5_3b_fp32_8x": "it computes in float32",
    "t5_small_gaudi2_8x": "it computes in float32",
    "t5_small_gaudi_8x": "it computes in float32",
    "stable_diffusion_1_4": "it convolves",
}
"""Runs that are outside of what was fitted on all cards, and why; all others have a range."""


@pytest.mark.parametrize("key", RUNS, ids="/".join)
def test_each_published_run_has_a_range_or_a_reason(key: tuple[str, str]) -> None:
    run = RUNS[key]
    cards = [card for card, title in registries.PUBLISHED.items() if title in run.hardware]
    assert cards
    found = []
    for card in cards:
        step = registries.step_of(run, card)
        assert step is not None, f"nobody has counted it: {REHEARSE} {'/'.join(key)}"
        assert step.num_cards == run.num_cards
        assert step.batch_size * step.counted.num_micro_batches > 0
        found.append(as_public_runs(card, step.counted, step.num_cards))
    for each in found:
        assert (each.seconds is None) == bool(each.why_not)
        if each.seconds is not None:
            assert each.low is not None
            assert each.high is not None
            assert 0 < each.low < each.high
            assert each.seconds == pytest.approx(sum((each.parts or {}).values()))
    if run.name in REFUSED:
        assert all(REFUSED[run.name] in each.why_not for each in found)
    else:
        assert any(each.seconds for each in found), [each.why_not for each in found]


REHEARSE = "python -m scripts.step_times.rehearse"


def test_what_is_refused_is_a_published_run() -> None:
    assert REFUSED.keys() <= {name for _, name in RUNS}


@pytest.mark.parametrize("key", RUNS, ids="/".join)
def test_no_published_run_took_less_than_the_least_that_is_planned(key: tuple[str, str]) -> None:
    for each, _ in registries.figures_of(RUNS[key]):
        assert each.least is not None
        if each.figure.name.endswith("_per_s"):
            assert each.figure.value <= each.least
        else:
            assert each.figure.value >= each.least


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_what_a_strategy_sends_is_what_the_simulator_counts(strategy: str, tmp_path: Path) -> None:
    """`sent_bytes` has it of published runs by their strategy, for nobody can rehearse these."""
    precision = "bf16-mixed" if strategy == "ddp" else "bf16-true"
    result, request = tmp_path / "result", tmp_path / "request"
    env = Request(result=str(result)).environment(request)
    env |= {"LIGHTNING_GAUDI_SIMULATE": "8", "LIGHTNING_GAUDI_SIMULATE_DRY": "1"}
    program = [sys.executable, sending.__file__, strategy, precision, "2"]
    done = run(program, env=env | {"LIGHTNING_GAUDI_RELIABILITY": "off"}, cwd=tmp_path, check=False)
    counted = [each["counted"] for each in read_results(result) if "counted" in each]
    assert counted, done.stderr
    row = {"cards": "8", "strategy": strategy, "trained": "all", "accumulation": "2"}
    row["precision"] = "autocast" if strategy == "ddp" else "bf16"
    num_weights = sending.NUM_LAYERS * sending.SIZE**2
    found = sum(counted[0]["collective_bytes"].values())
    # Beside gradients and weights a few numbers are sent, as whether one is infinite.
    assert found == pytest.approx(count.sent_bytes(row, num_weights, num_weights), abs=1000)


@pytest.mark.slow
def test_counts_are_those_that_a_dry_card_has() -> None:
    row = next(each for each in read("counts") if each["model"] == "distilbert")
    code = (
        "import json, sys; from scripts.step_times.count import count;"
        "print(json.dumps(count(json.loads(sys.argv[1]))))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, json.dumps(row)],
        capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, **count._environment()}, timeout=280,
    )  # fmt: skip
    found = json.loads(result.stdout.splitlines()[-1])
    assert {name: str(value) for name, value in found.items()} == {
        name: row[name] for name in count.COUNTS
    }
