"""Scripts of transformers, accelerate, peft and trl, unmodified, on one card and on two.

They run in processes of their own: to transformers the HPU is there or not for the whole process,
and where it is, it replaces functions of torch. On simulated cards losses are those of the CPU to
1e-5; 2e-3 is for real silicon, as in `one_card/test_training.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi._core import vendor
from tests.contract.several_cards.torchrun import need_cards, run, torchrun

pytest.importorskip("trl", reason="needs trl: pip install trl accelerate peft, on Python >= 3.11")
# Importing the libraries four times takes longer than what they compute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_RANKS = 2
SCRIPT = "tests.contract.other_trainers.train"
EXACT = 1e-5
SILICON = 2e-3
BF16 = 5e-2
RUNS = ("loop", "lora", "sft", "dpo", "trainer")
SHARDED = ("fsdp1", "fsdp2")
"""See there."""

Found = dict[str, Any]


def _read(folder: Path, rank: int = 0) -> Found:
    found: Found = json.loads((folder / f"rank{rank}.json").read_text())
    return found


@pytest.fixture
def tolerance() -> float:
    return SILICON if os.environ.get("LIGHTNING_GAUDI_TEST_ON") == "gaudi" else EXACT


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("cpu")
    run("-m", SCRIPT, folder, "cpu")
    return _read(folder)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("one")
    run("-m", SCRIPT, folder, "auto")
    return _read(folder)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    need_cards(NUM_RANKS)
    folder = tmp_path_factory.mktemp("two")
    more = () if vendor.is_lazy() else SHARDED
    torchrun(SCRIPT, folder, "auto", *more, num_ranks=NUM_RANKS)
    return [_read(folder, rank) for rank in range(NUM_RANKS)]


@pytest.fixture(params=["one card", "two cards"])
def on_cards(request: pytest.FixtureRequest) -> Found:
    if request.param == "one card":
        found: Found = request.getfixturevalue("on_one")
        return found
    ranks: list[Found] = request.getfixturevalue("on_two")
    return ranks[0]


def _history(found: Found, name: str) -> Found:
    history: Found = found[name].get("whole", found[name])
    return history


@pytest.mark.parametrize("name", RUNS)
def test_one_card_computes_what_the_cpu_does(
    on_cpu: Found, on_one: Found, tolerance: float, name: str
) -> None:
    expected, got = _history(on_cpu, name), _history(on_one, name)
    assert (expected["device"], got["device"]) == ("cpu", "hpu")
    for key in {"losses", "norms", "eval"} & {*expected}:
        assert expected[key]
        assert got[key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance)
    assert got["losses"][-1] < got["losses"][0]


@pytest.mark.parametrize("name", RUNS)
def test_two_cards_compute_what_one_does_with_the_same_global_batch(
    on_one: Found, on_two: list[Found], tolerance: float, name: str
) -> None:
    expected = _history(on_one, name)
    got = [_history(found, name) for found in on_two]
    assert {each["device"] for each in got} == {"hpu"}
    for key in {"losses", "norms", "eval"} & {*expected}:
        assert got[0][key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance)


@pytest.mark.skipif(vendor.is_lazy(), reason="FSDP needs eager mode: PT_HPU_LAZY_MODE=0")
@pytest.mark.parametrize("name", SHARDED)
def test_two_cards_that_share_a_model_compute_what_two_whole_ones_do(
    on_two: list[Found], tolerance: float, name: str
) -> None:
    expected = on_two[0]["trainer"]["whole"]
    for run_name in ("whole", "resumed"):
        got = on_two[0][name][run_name]
        for key in ("losses", "norms", "eval"):
            assert got[key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance)
    held = [found[name]["whole"]["num_held"] for found in on_two]
    assert max(held) < 0.6 * expected["num_held"]


def test_merged_adapters_compute_what_they_did_beside_the_weights(
    on_cards: Found, tolerance: float
) -> None:
    adapted = on_cards["lora"]
    assert adapted["merged"] == pytest.approx(adapted["eval"][-1], rel=tolerance)


def test_answers_that_are_rewarded_become_more(on_cards: Found) -> None:
    """Of GRPO, whose answers are drawn: two devices draw others, and learn the same from them."""
    run = on_cards["grpo"]
    assert run["device"] == "hpu"
    first, last = (sum(part) / 4 for part in (run["rewards"][:4], run["rewards"][-4:]))
    assert len(run["rewards"]) == 12
    assert last > first + 0.1, run["rewards"]


def test_two_cards_gather_from_both(on_two: list[Found]) -> None:
    assert [found["loop"]["gathered"] for found in on_two] == [[0, 1], [0, 1]]


def test_a_resumed_trainer_goes_on_as_the_uninterrupted_one(on_cards: Found) -> None:
    """Dropout of 0.3: without the card's generator in the checkpoint the losses would differ."""
    whole, resumed = on_cards["dropout"]["whole"], on_cards["dropout"]["resumed"]
    for key in ("losses", "norms", "eval"):
        assert resumed[key] == pytest.approx(whole[key], rel=SILICON)
    without = on_cards["trainer"]["whole"]["losses"]
    assert whole["losses"] != pytest.approx(without, rel=1e-2), "nothing was dropped"


def test_a_loaded_state_of_accelerate_repeats_losses_and_noise(on_cards: Found) -> None:
    first, second = on_cards["loop"]["noise"]
    assert first == second
    first, second = on_cards["loop"]["again"]
    assert second == pytest.approx(first, rel=SILICON)


def test_bf16_is_autocast_and_stays_near_fp32(on_cards: Found) -> None:
    fp32, bf16 = on_cards["trainer"]["whole"], on_cards["bf16"]["whole"]
    assert (fp32["types"], bf16["types"]) == (["torch.float32"], ["torch.bfloat16"])
    assert bf16["losses"] == pytest.approx(fp32["losses"], rel=BF16)
    assert bf16["losses"] != fp32["losses"]
