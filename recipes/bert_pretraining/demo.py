"""Demonstrates the recipe: trains `simulated.yaml`, then shows in a table whether it went well.

Run by `make demo`; more arguments override the configuration, as on the command line of `fit`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor, TokenThroughput
from recipes.bert_pretraining.__main__ import run
from recipes.common import findings
from recipes.common.cli import RecipeCLI
from recipes.common.errors import UserError
from recipes.common.export import export
from recipes.common.folders import folder_to_fill, place_of, run_folder
from recipes.common.report import RunReport
from recipes.common.sections import Row, Section, table

CONFIG = Path(__file__).with_name("simulated.yaml")
MIN_MARGIN_NATS = 0.3
MIN_TOKEN_EFFICIENCY = 0.95
MAX_TRAINING_GRAPHS = 5
"""In lazy mode: forward and backward, clipping, one for each group of weights, losses to log."""
_FIT = "python -m recipes.bert_pretraining"
_NOT_MEASURED = "not measured by this device"

_Kind = TypeVar("_Kind", bound=Callback)


def main(overrides: Sequence[str] = ()) -> int:
    """Trains, tests, exports and reports.

    Returns:
        The exit status: 0 if every goal was met, 1 if not, 2 for a wrong setting, 130 after Ctrl-C
        (a fit ends with it by itself).
    """
    start = time.perf_counter()
    print("1/3  Training on real text: the documentation of Python and torch", flush=True)
    try:
        cli = run(["fit", "--config", str(CONFIG), *overrides], program=_FIT)
        trainer, report = cli.trainer, _callback(cli.trainer, RunReport)
        checkpoint = place_of(_callback(trainer, ModelCheckpoint).best_model_path)
        rows = [*_loss_rows(cli), *_run_rows(trainer)]  # before another loop touches the device
        print("2/3  Testing the best checkpoint on text that was held out", flush=True)
        trainer.test(cli.model, cli.datamodule, ckpt_path=str(checkpoint), verbose=False)
        test_loss = float(trainer.callback_metrics["test/mlm_loss"])
        rows.insert(4, Row("test MLM loss, best checkpoint", f"{test_loss:.3f} nats"))
        print("3/3  Exporting", flush=True)
        exported = run_folder(trainer) / "export"
        with folder_to_fill(exported) as folder:
            export(checkpoint, folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    rows.append(Row("duration", f"{time.perf_counter() - start:.0f} s"))
    rows.append(Row("export for transformers", str(exported)))
    goals = Section("The demonstration", tuple(rows))
    report.sections.insert(0, goals)
    report.write(trainer)
    print(table([goals]))
    missed = [row.name for row in rows if row.is_met is False]
    print(f"FAILED: {', '.join(missed)}" if missed else "Every goal was met.")
    return 1 if missed else 0


def _callback(trainer: Trainer, kind: type[_Kind]) -> _Kind:
    found = [each for each in trainer.callbacks if isinstance(each, kind)]
    if not found:
        raise UserError(f"The demonstration reads its figures from a {kind.__name__}: add it.")
    return found[0]


def _loss_rows(cli: RecipeCLI) -> list[Row]:
    loss = float(cli.trainer.callback_metrics["val/mlm_loss"])
    reference = cli.datamodule.unigram_reference("validation")
    margin = reference.strictest - loss
    return [
        Row("validation MLM loss, final", f"{loss:.3f} nats"),
        Row("unigram entropy, same text", f"{reference.text_entropy:.3f} nats"),
        Row("... on the masked tokens only", f"{reference.target_cross_entropy:.3f} nats"),
        Row(
            "margin below the lower of both",
            f"{margin:.3f} nats",
            f"at least {MIN_MARGIN_NATS}",
            margin >= MIN_MARGIN_NATS,
        ),
    ]


def _run_rows(trainer: Trainer) -> list[Row]:
    speed = _callback(trainer, TokenThroughput).report
    graphs = _callback(trainer, GraphMonitor).report
    is_hpu = findings.is_hpu(trainer)
    is_lazy = is_hpu and vendor.is_lazy()
    compiled, syncs = graphs.training_graphs, graphs.host_syncs_per_step
    return [
        Row(
            "token efficiency",
            f"{speed.token_efficiency:.1%}",
            f"over {MIN_TOKEN_EFFICIENCY:.0%}",
            speed.token_efficiency > MIN_TOKEN_EFFICIENCY,
        ),
        Row(
            "training graphs compiled",
            _NOT_MEASURED if compiled is None else f"{compiled}" if is_lazy else "none: eager mode",
            f"at most {MAX_TRAINING_GRAPHS}",
            None if compiled is None or not is_lazy else compiled <= MAX_TRAINING_GRAPHS,
        ),
        Row(
            "host syncs a training step",
            _NOT_MEASURED if syncs is None else f"{syncs:.3f}",
            "0 outside log steps",
            None if syncs is None else syncs == 0,
        ),
        Row(
            "throughput",
            f"{speed.tokens_per_s:,.0f} tokens/s, {speed.samples_per_s:.0f} sequences/s",
        ),
        Row(
            "... of",
            f"{vendor.device_name() if is_hpu else 'CPU'}; a simulated card has the speed of this "
            f"CPU ({torch.get_num_threads()} threads)",
        ),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
