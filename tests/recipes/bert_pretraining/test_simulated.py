"""What the simulated configurations promise: their first losses, and a sense for next sentences."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from lightning.pytorch.callbacks import Callback

import recipes.bert_pretraining
from lightning_gaudi.data import embedded_fingerprint
from recipes.bert_pretraining.__main__ import run

FOLDER = Path(recipes.bert_pretraining.__file__).parent
GOLDEN = Path(__file__).parent / "golden_losses.json"
RECORD = "LIGHTNING_GAUDI_RECORD_GOLDEN"
NUM_STEPS = 20
TOLERANCE = 1e-4


class FirstLosses(Callback):
    """Keep the losses of the first steps, and stop there; the schedule stays as it is."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.values.append(float(outputs["loss"]))
        trainer.should_stop = len(self.values) >= NUM_STEPS


def _versions():
    return {
        "text": embedded_fingerprint(("torch",)),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def _cli(name, path, *arguments):
    return run(
        [
            *("--config", str(FOLDER / f"{name}.yaml"), "--trainer.logger=false"),
            *("--trainer.callbacks=null", "--trainer.enable_checkpointing=false"),
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
    cli = _cli("simulated", tmp_path, *overrides)
    cli.trainer.callbacks.append(losses)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert len(losses.values) == NUM_STEPS
    if RECORD in os.environ and accelerator == "cpu":
        content = {"versions": versions, "losses": losses.values}
        GOLDEN.write_text(json.dumps(content, indent=2) + "\n")
        recorded = content
    assert losses.values == pytest.approx(recorded["losses"], abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.xfail(reason="4,000 steps end where it begins to learn", strict=False)
def test_the_model_tells_next_sentences_from_others(tmp_path):
    cli = _cli("simulated_nsp", tmp_path, "--trainer.val_check_interval=4000")
    cli.trainer.fit(cli.model, cli.datamodule)
    metrics = cli.trainer.callback_metrics
    assert metrics["val/nsp_majority"] < 0.53
    assert metrics["val/nsp_accuracy"] >= metrics["val/nsp_majority"] + 0.05
