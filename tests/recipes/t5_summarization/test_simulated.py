"""What `simulated.yaml` promises: its first losses, and summaries better than the lead."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from lightning.pytorch.callbacks import Callback

import recipes.t5_summarization
from lightning_gaudi.data import embedded_fingerprint
from recipes.t5_summarization.__main__ import run

CONFIGURATION = Path(recipes.t5_summarization.__file__).parent / "simulated.yaml"
GOLDEN = Path(__file__).parent / "golden_losses.json"
RECORD = "LIGHTNING_GAUDI_RECORD_GOLDEN"
NUM_STEPS = 20
TOLERANCE = 1e-4


class FirstLosses(Callback):
    """Keep the losses of the first steps, and stop there; the schedule stays as it is."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if len(self.values) < NUM_STEPS:
            self.values.append(float(outputs["loss"]))
        else:
            trainer.should_stop = True


def _versions():
    return {
        "text": embedded_fingerprint(("torch",)),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def _cli(path, *arguments):
    return run(
        [
            *("--config", str(CONFIGURATION), "--trainer.logger=false", "--trainer.callbacks=null"),
            *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
            f"--trainer.default_root_dir={path}",
            *arguments,
        ],
        run=False,
    )


@pytest.mark.parametrize("accelerator", ["cpu", "hpu"])
def test_the_first_losses_are_those_recorded(accelerator, tmp_path):
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"versions": {}}
    versions, losses = _versions(), FirstLosses()
    if versions != recorded["versions"] and RECORD not in os.environ:
        pytest.skip(
            f"{GOLDEN.name} was recorded with {recorded['versions']}, here are {versions}. To "
            f"record anew, run this test with {RECORD}=1."
        )
    overrides = [f"--trainer.accelerator={accelerator}", "--trainer.limit_val_batches=0"]
    cli = _cli(tmp_path, *overrides)
    cli.trainer.callbacks.append(losses)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert len(losses.values) == NUM_STEPS
    if RECORD in os.environ and accelerator == "cpu":
        recorded = {"versions": versions, "losses": losses.values}
        GOLDEN.write_text(json.dumps(recorded, indent=2) + "\n")
    assert losses.values == pytest.approx(recorded["losses"], abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_finds_and_copies_what_is_marked(seed, tmp_path):
    seeds = [f"--seed_everything={seed}", f"--data.seed={seed}"]
    cli = _cli(tmp_path, *seeds, "--data.num_generated=null")
    cli.trainer.fit(cli.model, cli.datamodule)
    scores = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert len(cli.datamodule.rows_to_generate("validation")) > 200
    assert scores["val/rougeL"] > scores["val/lead1_rougeL"] + 10
    assert scores["val/rougeL"] >= 0.9 * scores["val/marked_rougeL"]
    assert scores["val/marked_rougeL"] > 97  # the trivial solution
    assert scores["val/distinct"] > 95  # percent of the summaries
    # The test split tells the same: nothing was chosen by the validation rows.
    tested = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    metrics = {name: value for each in tested for name, value in each.items()}
    assert metrics["test/rougeL"] >= 0.9 * metrics["test/marked_rougeL"]
