"""The first losses of each recipe's `simulated.yaml` are those that were recorded.

What packs rows is tried with a sample a row, too: those losses are of before there was packing.
The text differs between versions of Python and torch, so the record says with which it was made.
"""

import json
import os
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from lightning.pytorch.callbacks import Callback

from lightning_gaudi.data import embedded_fingerprint
from tests.helpers.recipes import quiet_cli

GOLDEN = Path(__file__).with_name("golden_losses.json")
RECORD = "LIGHTNING_GAUDI_RECORD_GOLDEN"
NUM_STEPS, TOLERANCE = 20, 1e-4
FAST = "bert_pretraining"
_UNPACKED = ("--data.max_sequences_per_pack=1", "--data.batch_size=32")
_MRPC = "--data.pairs_per_sentence=1"
OVERRIDES = {
    "bert_pretraining": (),
    # One rewriting of each sentence, not six, is made six times as fast.
    "llm_finetuning": ("--model.epsilon=1e-12",),
    "mrpc": (_MRPC, *_UNPACKED),
    "mrpc, packed": (_MRPC,),
    "t5_summarization": _UNPACKED,
    "t5_summarization, packed": (),
    # Tokens that a batch has not have gradients so small that the usual 1e-8 counts, and the
    # vendor's kernel adds it elsewhere.
    "text_generation": ("--model.epsilon=1e-12",),
}


class FirstLosses(Callback):
    """Keep the losses of the first steps, and stop there; the schedule stays as it is."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.values.append(float(outputs["loss"]))
        trainer.should_stop = len(self.values) >= NUM_STEPS


def _versions() -> dict[str, str]:
    return {
        "text": embedded_fingerprint(("torch",)),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


@pytest.mark.parametrize(
    ("accelerator", "optimizer"),
    [
        ("hpu", "auto"),
        pytest.param("hpu", "adamw", marks=pytest.mark.slow),
        pytest.param("cpu", "auto", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "run",
    [pytest.param(name, marks=() if name == FAST else pytest.mark.slow) for name in OVERRIDES],
)
def test_the_first_losses_are_those_recorded(run, accelerator, optimizer, tmp_path):
    golden = json.loads(GOLDEN.read_text())
    versions, recording = _versions(), RECORD in os.environ
    if versions != golden["versions"] and not recording:
        pytest.skip(
            f"{GOLDEN.name} was recorded with {golden['versions']}, here are {versions}. To record "
            f"anew, run this file with {RECORD}=1 and -n 0."
        )
    arguments = [
        *(f"--trainer.accelerator={accelerator}", "--trainer.limit_val_batches=0"),
        f"--model.optimizer={optimizer}",
    ]
    cli = quiet_cli(run.split(",")[0], tmp_path, *arguments, *OVERRIDES[run])
    losses = FirstLosses()
    cli.trainer.callbacks.append(losses)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert len(losses.values) == NUM_STEPS
    if recording and accelerator == "cpu":
        golden = {**golden, "versions": versions, run: losses.values}
        GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")
    assert losses.values == pytest.approx(golden[run], abs=TOLERANCE)
