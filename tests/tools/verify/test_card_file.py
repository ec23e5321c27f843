"""A file of measurements: what is read of it, what is refused, and what follows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi import measured_card
from lightning_gaudi.hardware import GAUDIS
from lightning_gaudi.measured_card import VARIABLE, CardFileError
from lightning_gaudi.simulator import measured
from lightning_gaudi.simulator.settings import RELEASE
from lightning_gaudi.tools.command_line import main
from lightning_gaudi.tools.plan import fitted, report
from lightning_gaudi.tools.plan.cards import CARDS, as_measured
from lightning_gaudi.tools.plan.plan import Planned
from lightning_gaudi.tools.plan.request import Counted, Rehearsed, Request
from lightning_gaudi.tools.plan.step_times import as_public_runs
from tests.helpers.forked import fork_python
from tests.tools.verify import changed

RULES = {"svd-on-cpu": ("eager", "none"), "fft-refused": ("eager", "refused")}
FIGURES = {
    "matmuls": [
        {"dtype": "bfloat16", "m": 8, "k": 8, "n": 8, "seconds": 1e-3, "flops": 4.0e14},
        {"dtype": "bfloat16", "m": 1, "k": 8, "n": 8, "seconds": 1e-3, "flops": 1.0e13},
    ],
    "operators": [{"operator": "gelu", "seconds": 1e-3, "bytes_per_s": 2.0e12}],
    "collectives": [
        {"collective": "all_reduce", "num_cards": 8, "num_bytes": 8, "bytes_per_s": 2.5e11}
    ],
    "launches": [{"mode": "eager", "seconds": 7e-6}],
    "compile": [{"mode": "compiled", "num_nodes": 100, "seconds": 3.0}],
}


def _file(folder: Path, **others: Any) -> Path:
    return changed.write(folder / "card.json", RULES, changed.memory(1), figures=FIGURES, **others)


def test_what_is_measured_is_read(tmp_path: Path) -> None:
    found = measured_card.read(_file(tmp_path, is_simulated=False))
    assert found.found("svd-on-cpu", ("eager",)) == "none"
    assert found.found("svd-on-cpu", ("lazy",)) is None
    assert found.flops("bfloat16") == 4.0e14
    assert found.flops("float32") is None
    assert found.bandwidth() == 2.0e12
    assert found.link_bandwidth(8) == 2.5e11
    assert found.link_bandwidth(4) is None
    assert found.launch_seconds("eager") == 7e-6
    assert found.compile_seconds("compiled") == {100: 3.0}


def test_times_of_a_simulated_card_are_nobody_s(tmp_path: Path) -> None:
    found = measured_card.read(_file(tmp_path))
    assert found.flops("bfloat16") is None
    assert found.launch_seconds("eager") is None
    assert not found.compile_seconds("compiled")


BROKEN: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "damaged: it is no JSON"),
    "another file": ({"kind": "x"}, "is no file of measurements"),
    "another version": ({"schema": 7}, r"is of version 7 .* reads version 1"),
    "no card": ({"card": None}, "damaged: card is 'None'"),
    "a verdict that is none": (
        {"rules": [{"key": "x", "mode": "eager", "found": "perhaps"}]},
        "damaged: of the rule 'x' it says 'eager', 'perhaps'",
    ),
    "rules that are no list": ({"rules": 3}, "damaged: rules is no list"),
    "memory that is negative": (
        {"memory": changed.memory(1) | {"limit_bytes": -1}},
        "damaged: memory.limit_bytes is '-1'",
    ),
    "memory that is incomplete": ({"memory": {}}, "damaged: memory must have alignment_bytes"),
    "figures that are no table": ({"figures": {"matmuls": [{"flops": []}]}}, "figures.matmuls"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_refused(name: str, tmp_path: Path) -> None:
    change, message = BROKEN[name]
    path = _file(tmp_path)
    values = json.loads(path.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps(values | change))
    with pytest.raises(CardFileError, match=message):
        measured_card.read(path)


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path)
    path.write_text(path.read_text().replace("7e-06", "NaN"))
    with pytest.raises(CardFileError, match="NaN is not a finite number"):
        measured_card.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"card": "gaudi9"}, "card 'gaudi9', which is not known here. Known are gaudi1"),
        ({"release": "1.99"}, "release '1.99' of the Gaudi software, which is not known here"),
        (
            {"rules": [{"key": "no-such", "mode": "eager", "found": "none"}]},
            r"rules that are not known here \(no-such\)",
        ),
    ],
)
def test_what_is_not_known_here_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = _file(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CardFileError, match=message):
        measured.check(measured_card.read(path))


@pytest.mark.parametrize(
    ("card", "release", "message"),
    [
        ("gaudi3", "1.24.1", "was measured on a Gaudi 2, and this is a Gaudi 3"),
        ("gaudi2", "1.22", "measured with release 1.24.1 of the Gaudi software, and 1.22 is"),
    ],
)
def test_a_file_of_another_card_is_refused(
    card: str, release: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(_file(tmp_path)))
    with pytest.raises(CardFileError, match=message):
        measured.load(card, release)
    assert measured.variable_for(card, release) == {VARIABLE: ""}


def test_a_simulated_card_follows_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path)
    terms = changed.memory(1)
    fork_python(
        f"""
        import lightning_gaudi, torch
        from lightning_gaudi import vendor
        at_start = vendor.memory_stats()
        assert at_start["Limit"] == {terms["limit_bytes"]}, at_start
        assert at_start["InUse"] == {terms["at_start_bytes"]}, at_start
        torch.linalg.svd(torch.ones(3, 3, device="hpu"))
        assert vendor.metric("cpu_fallback")["TotalNumber"] == 0
        torch.linalg.eigh(torch.ones(3, 3, device="hpu"))
        assert vendor.metric("cpu_fallback")["TotalNumber"] == 1
        """,
        env={VARIABLE: str(path), "LIGHTNING_GAUDI_SIMULATE_RULES": "off"},
    )


def test_a_plan_takes_memory_and_speeds_of_a_real_card_alone(tmp_path: Path) -> None:
    real = measured_card.read(_file(tmp_path, is_simulated=False))
    gaudi2, gaudi3 = as_measured([CARDS["gaudi2"], CARDS["gaudi3"]], real)
    assert gaudi3 == CARDS["gaudi3"]
    # Cards send in both directions at once, and what was measured is sent.
    assert (gaudi2.bf16_flops, gaudi2.bandwidth, gaudi2.link_bandwidth) == (4.0e14, 2.0e12, 5.0e11)
    assert gaudi2.memory_bytes == changed.memory(1)["limit_bytes"]
    assert gaudi2.measured is real
    [simulated] = as_measured([CARDS["gaudi2"]], measured_card.read(_file(tmp_path)))
    assert simulated.bf16_flops == CARDS["gaudi2"].bf16_flops
    assert simulated.memory_bytes == changed.memory(1)["limit_bytes"]


STEP = Counted(
    flops=10**14,
    fused_bytes=10**12,
    product_bytes=4 * 10**11,
    num_attentions=24,
    flops_of={"bfloat16": 10**14},
    collective_bytes={"all_gather": 10**9},
)


def _steps(mode: str, **times: float) -> list[dict[str, Any]]:
    """Rows of reference steps that took so many times as long as public runs would."""
    found = []
    for name, pace in times.items():
        likely = as_public_runs("gaudi2", fitted.REFERENCES[name.replace("_", "-")], 1).seconds
        assert likely is not None
        row = {"step": name.replace("_", "-"), "mode": mode, "is_small": False}
        found.append({**row, "seconds": pace * likely})
    return found


def test_an_estimate_of_public_runs_has_the_pace_of_the_card(tmp_path: Path) -> None:
    figures = {"steps": _steps("lazy", BERT_large=2.0, LoRA=4.5, decoding=0.5)}
    card = measured_card.read(
        changed.write(tmp_path / "card.json", {}, figures=figures, is_simulated=False)
    )
    public = as_public_runs("gaudi2", STEP, 8)
    own = as_public_runs("gaudi2", STEP, 8, card)
    assert own.paces == pytest.approx({"BERT-large": 2.0, "LoRA": 4.5})
    assert own.parts is not None
    assert public.parts is not None
    # By their geometric mean; what the links take is not in these steps.
    for name, times in {"operations": 3.0, "memory": 3.0, "reduced and gathered": 1.0}.items():
        assert own.parts[name] == pytest.approx(times * public.parts[name])
    assert own.seconds == pytest.approx(sum(own.parts.values()))
    assert own.low == pytest.approx(fitted.FITS["training", "gaudi2"].low * (own.seconds or 0))
    text = fitted.REFERENCES["decoding"]
    written = as_public_runs("gaudi2", text, 1, card).seconds
    assert written == pytest.approx(0.5 * (as_public_runs("gaudi2", text, 1).seconds or 0))
    # They were taken in lazy mode, and say nothing of the other.
    assert as_public_runs("gaudi2", STEP, 8, card, is_lazy=False) == public
    [planned] = as_measured([CARDS["gaudi2"]], card)
    found = Rehearsed(8, 2**30, 0, num_cards=8, is_lazy=True)
    shown = report.text(Planned(Request(devices=8), "", found, STEP, {"gaudi2": 64}), [planned])
    assert "Gaudi 2: its own steps took so many times as long, as here: BERT-large 2.00" in shown
    assert f"speeds and step times as {card.path} says" in shown


def test_an_estimate_of_public_runs_is_no_faster_than_the_card(tmp_path: Path) -> None:
    figures = {
        "matmuls": [{"dtype": "bfloat16", "flops": 1.0e14}],
        "collectives": [{"num_cards": 8, "bytes_per_s": 1.0e9}],
        "operators": [{"operator": "gelu", "bytes_per_s": 1.0e13}],
    }
    path = changed.write(tmp_path / "card.json", {}, figures=figures, is_simulated=False)
    public = as_public_runs("gaudi2", STEP, 8)
    own = as_public_runs("gaudi2", STEP, 8, measured_card.read(path))
    assert own.bounds == ("operations", "reduced and gathered")
    assert public.parts is not None
    assert own.parts == pytest.approx(
        {**public.parts, "operations": 1.0, "reduced and gathered": 1.0}
    )
    simulated = changed.write(tmp_path / "simulated.json", {}, figures=figures)
    assert as_public_runs("gaudi2", STEP, 8, measured_card.read(simulated)) == public


@pytest.mark.parametrize(
    ("cards", "release", "message"),
    [
        ("gaudi3", "1.24", "on a Gaudi 2, for which this is no plan. Plan for it, too (--cards"),
        ("gaudi2", "1.22", "was measured with release 1.24.1 of the Gaudi software, and 1.22 is"),
    ],
)
def test_a_plan_does_not_leave_a_file_out_in_silence(
    cards: str,
    release: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, str(_file(tmp_path)))
    monkeypatch.setenv(RELEASE, release)
    assert main(["plan", "--cards", cards, "--", "python", "train.py"]) == 2
    assert message in capsys.readouterr().err


def test_apply_says_what_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = {**RULES, "sparse-refused": ("eager", "none")}
    path = changed.write(tmp_path / "card.json", rules)
    assert main(["verify", "--apply", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"export {VARIABLE}={path}\n"
    assert "3 rules, 1 of them followed otherwise than the table says: svd-on-cpu" in err
    assert "cannot follow sparse-refused" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "rulez"], "there is no part 'rulez'. Did you mean 'rules'?"),
        (["--apply", "missing.json"], "missing.json cannot be read (No such file or directory)"),
        (["--output", "mine.txt"], "mine.txt is there and is no file of measurements"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("mine")
    assert main(["verify", *words]) == 2
    assert message in capsys.readouterr().err
    assert Path("mine.txt").read_text() == "mine"


def test_the_terms_of_the_table_are_those_of_the_simulated_card() -> None:
    terms = measured.memory_of(GAUDIS["gaudi2"])
    fork_python(
        f"""
        import lightning_gaudi, torch
        from lightning_gaudi import vendor
        assert vendor.memory_stats()["InUse"] == {terms.at_start_bytes}
        assert vendor.memory_stats()["Limit"] == {terms.limit_bytes}
        """
    )
