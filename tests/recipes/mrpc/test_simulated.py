"""What `simulated.yaml` promises: its first losses, and scores above those of the baselines."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from lightning.pytorch.callbacks import Callback

import recipes.mrpc
from lightning_gaudi.data import embedded_fingerprint
from recipes.mrpc.__main__ import run

CONFIGURATION = Path(recipes.mrpc.__file__).parent / "simulated.yaml"
GOLDEN = Path(__file__).parent / "golden_losses.json"
RECORD = "LIGHTNING_GAUDI_RECORD_GOLDEN"
NUM_STEPS = 20
TOLERANCE = 1e-4


class FirstLosses(Callback):
    """Keep the losses of the first steps, and stop there if told; the schedule stays as it is."""

    def __init__(self, num_steps=NUM_STEPS, stops=True):
        self.values, self.num_steps, self.stops = [], num_steps, stops

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if len(self.values) < self.num_steps:
            self.values.append(float(outputs["loss"]))
        elif self.stops:
            trainer.should_stop = True


def _versions():
    return {
        "text": embedded_fingerprint(("torch",)),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def _fit(path, callback, *arguments):
    cli = run(
        [
            *("--config", str(CONFIGURATION), "--trainer.logger=false", "--trainer.callbacks=null"),
            *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
            f"--trainer.default_root_dir={path}",
            *arguments,
        ],
        run=False,
    )
    cli.trainer.callbacks.append(callback)
    cli.trainer.fit(cli.model, cli.datamodule)
    return cli


@pytest.mark.parametrize("accelerator", ["cpu", "hpu"])
def test_the_first_losses_are_those_recorded(accelerator, tmp_path):
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"versions": {}}
    versions, losses = _versions(), FirstLosses()
    if versions != recorded["versions"] and RECORD not in os.environ:
        pytest.skip(
            f"{GOLDEN.name} was recorded with {recorded['versions']}, here are {versions}. To "
            f"record anew, run this test with {RECORD}=1."
        )
    # One rewriting of each sentence, not six, is made six times as fast.
    overrides = ["--data.pairs_per_sentence=1", "--trainer.limit_val_batches=0"]
    _fit(tmp_path, losses, f"--trainer.accelerator={accelerator}", *overrides)
    assert len(losses.values) == NUM_STEPS
    if RECORD in os.environ and accelerator == "cpu":
        content = {"versions": versions, "losses": losses.values}
        GOLDEN.write_text(json.dumps(content, indent=2) + "\n")
        recorded = content
    assert losses.values == pytest.approx(recorded["losses"], abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_beats_both_baselines(seed, tmp_path, capsys):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = _fit(tmp_path, FirstLosses(stops=False), *seeds)
    printed = capsys.readouterr().out
    assert cli.model.num_evaluated == len(cli.datamodule.pairs["validation"]) > 1000
    f1 = float(cli.trainer.callback_metrics["val/f1"])
    baselines = cli.datamodule.baselines("validation")
    for name, (baseline, _) in baselines.items():
        assert f"{name}" in printed
        assert f1 > baseline + 0.01, name
    # The test split tells the same: the model was not chosen by the validation pairs.
    tested = cli.trainer.test(cli.model, cli.datamodule, verbose=False)[0]["test/f1"]
    assert all(tested > score for score, _ in cli.datamodule.baselines("test").values())
