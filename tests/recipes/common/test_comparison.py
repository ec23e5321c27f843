"""What `fit` prints of a published run that its settings claim to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import TokenThroughput
from recipes.common import comparison
from recipes.common.comparison import PublishedComparison
from recipes.common.errors import UserError
from recipes.common.published import differing_settings, find_run
from recipes.common.report import RunReport
from recipes.mrpc.__main__ import run
from tests.helpers.recipes import ROOT, quiet_cli

DATA = ROOT.parent / "tests" / "fixtures" / "mrpc" / "glue"
SMALL = (
    *("--data.source=path", f"--data.path={DATA}", "--data.vocab_size=300", "--data.batch_size=4"),
    *("--model.hidden_size=16", "--model.num_layers=1", "--trainer.max_epochs=2"),
    *("--trainer.check_val_every_n_epoch=2", "--trainer.val_check_interval=1.0"),
)


def _fit(tmp_path: Path, *arguments: str) -> tuple[PublishedComparison, Any]:
    cli = quiet_cli("mrpc", tmp_path, "--published=gaudi_8x", *SMALL, *arguments)
    (found,) = (c for c in cli.trainer.callbacks if isinstance(c, PublishedComparison))
    cli.trainer.callbacks.insert(0, TokenThroughput(num_warmup_steps=1))
    cli.trainer.fit(cli.model, cli.datamodule)
    return found, cli


def test_a_run_on_a_simulated_card_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, cli = _fit(tmp_path)
    shown = capsys.readouterr().out
    assert (
        "published/gaudi_8x: BERT-large (whole-word masking) fine-tuned on MRPC on eight" in shown
    )
    assert "not comparable:\n  this run was simulated, or on no Gaudi, the published one on Gaudi\n"
    for reason in (
        "1 card(s), not 8",
        "trainer.devices is 1, not 8",
        "data.batch_size is 4, not 16",
        "data.source is path, not hub",
        "environment.PT_HPU_LAZY_MODE is <absent>, not 1",
        "model.name is null, not bert-large-uncased-whole-word-masking",
    ):
        assert reason in found.reasons
        assert f"\n  {reason}\n" in shown
    measured = {row.figure.name: row.measured for row in found.rows}
    assert measured["val/f1"] == pytest.approx(float(cli.trainer.callback_metrics["val/f1"]))
    assert measured["train_samples_per_s"] > 0
    assert measured["train_seconds"] > 0
    assert [row.is_within for row in found.rows] == [None] * 3
    assert "within" not in shown


@pytest.mark.slow
def test_the_report_of_the_run_has_the_rows(tmp_path: Path) -> None:
    cli = quiet_cli("mrpc", tmp_path, "--published=gaudi_8x", *SMALL)
    cli.trainer.callbacks.insert(0, RunReport("Mrpc fit"))
    cli.trainer.fit(cli.model, cli.datamodule)
    (html,) = tmp_path.rglob("report.html")
    text = html.read_text("utf-8")
    assert "<h2>Published run gaudi_8x: BERT-large" in text
    assert "; published for Gaudi: 0.8897</td>" in text
    assert "<td>data.batch_size is 4, not 16</td>" in text
    assert "worse" not in text


@pytest.mark.filterwarnings("ignore:Attention on the HPU is composed of operators")
def test_figures_of_the_same_card_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a first Gaudi, with nothing but the card pretended."""
    metric = vendor.metric
    monkeypatch.setattr(
        comparison.vendor, "metric", lambda name: None if name == "host_sync" else metric(name)
    )
    monkeypatch.setattr(comparison.vendor, "device_name", lambda: "GAUDI")
    found, _ = _fit(tmp_path, "--trainer.limit_train_batches=3")
    assert found.reasons[:2] == ["1 card(s), not 8", "trainer.limit_train_batches is 3"]
    assert not any("simulated" in reason for reason in found.reasons)
    rows = {row.figure.name: row for row in found.rows}
    assert rows["val/f1"].is_within is False
    speed = rows["train_samples_per_s"]  # some CPUs are as fast, with a tiny model
    assert speed.measured is not None
    least = speed.figure.value * (1 - speed.figure.tolerance)
    assert speed.is_within is (speed.measured >= least)


def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    found, _ = _fit(tmp_path, "--trainer.max_time=00:00:00:00", "--trainer.limit_val_batches=0")
    assert found.reasons[3].startswith("the run ended after 0 of ")
    measured = {row.figure.name: row.measured for row in found.rows}
    assert measured["val/f1"] is None
    assert measured["train_samples_per_s"] is None


def test_nothing_is_compared_where_nothing_is_claimed(tmp_path: Path) -> None:
    cli = quiet_cli("mrpc", tmp_path, *SMALL)
    assert not any(isinstance(each, PublishedComparison) for each in cli.trainer.callbacks)


def test_a_claim_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"published=gaudi_9x is no run that mrpc knows\. Did you"):
        quiet_cli("mrpc", tmp_path, "--published=gaudi_9x", *SMALL)


@pytest.mark.parametrize("batch_size", [32, 16])
def test_the_parsed_settings_of_a_published_file_are_its_own(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser writes some of them in another way than the file."""
    monkeypatch.setattr("recipes.common.cli.RecipeCLI.instantiate_classes", lambda self: None)
    path = ROOT / "mrpc" / "published" / "gaudi_1x.yaml"
    environment = {"PT_HPU_LAZY_MODE": "1"}
    for name, file in (("LOWER_PRECISION", "ops_bf16.txt"), ("FP32", "ops_fp32.txt")):
        environment[f"PT_HPU_AUTOCAST_{name}_OPS_LIST"] = str(path.with_name(file))
    words = ["--config", str(path), f"--data.batch_size={batch_size}"]
    cli = run([*words, f"--environment={json.dumps(environment)}"], run=False)
    expected = [] if batch_size == 32 else ["data.batch_size is 16, not 32"]
    found = differing_settings(find_run(ROOT / "mrpc", "gaudi_1x"), cli.config.as_dict())
    assert found == expected
