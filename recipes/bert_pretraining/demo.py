"""The demonstration: train `simulated.yaml`, then say in one table whether it went well.

Run by `make demo`; more arguments override the configuration, as on the command line of `fit`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor, GraphReport, TokenThroughput
from recipes.bert_pretraining.__main__ import run
from recipes.bert_pretraining.plot import plot_losses, read_curves
from recipes.common.cli import RecipeCLI
from recipes.common.errors import UserError
from recipes.common.export import export

CONFIG = Path(__file__).with_name("simulated.yaml")
MIN_MARGIN_NATS = 0.3
MIN_TOKEN_EFFICIENCY = 0.95
MAX_TRAINING_GRAPHS = 3
_MAX_CAUSES = 4
_NOT_MEASURED = "not measured by this device"


@dataclass(frozen=True)
class Line:
    """One line of the summary."""

    name: str
    value: str
    goal: str = ""
    is_met: bool | None = None
    """None where nothing is asked for."""


def main(overrides: Sequence[str] = ()) -> int:
    """Train, test, export, plot and report.

    Returns:
        The exit status: 0 if every goal was met, 1 if not, 2 for a wrong setting, 130 after Ctrl-C
        outside of a fit (in one, Lightning itself ends the process, with 1).
    """
    start = time.perf_counter()
    print("1/3  Training on real text: the documentation of Python and torch", flush=True)
    try:
        cli = run(["fit", "--config", str(CONFIG), *overrides])
        print("2/3  Testing the best checkpoint on text that was held out", flush=True)
        checkpoint = Path(_callback(cli.trainer, ModelCheckpoint).best_model_path)
        losses = {"validation": float(cli.trainer.callback_metrics["val/mlm_loss"])}
        lines_of_run = _run_lines(cli.trainer)  # before another loop touches the device
        cli.trainer.test(cli.model, cli.datamodule, ckpt_path=str(checkpoint), verbose=False)
        losses["test"] = float(cli.trainer.callback_metrics["test/mlm_loss"])
        print("3/3  Exporting and drawing", flush=True)
        lines = [*_loss_lines(cli, losses), *lines_of_run, *_artifacts(cli, checkpoint)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    _print_table([*lines, Line("duration", f"{time.perf_counter() - start:.0f} s")])
    missed = [line.name for line in lines if line.is_met is False]
    print(f"FAILED: {', '.join(missed)}" if missed else "Every goal was met.")
    return 1 if missed else 0


def _callback(trainer: Trainer, kind: type) -> object:
    found = [callback for callback in trainer.callbacks if isinstance(callback, kind)]
    if not found:
        raise UserError(f"The demonstration reads its figures from a {kind.__name__}: add it.")
    return found[0]


def _loss_lines(cli: RecipeCLI, losses: dict[str, float]) -> list[Line]:
    reference = cli.datamodule.unigram_reference("validation")
    margin = reference.strictest - losses["validation"]
    return [
        Line("validation MLM loss, final", f"{losses['validation']:.3f} nats"),
        Line("unigram entropy, same text", f"{reference.text_entropy:.3f} nats"),
        Line("... on the masked tokens only", f"{reference.target_cross_entropy:.3f} nats"),
        Line(
            "margin below the lower of both",
            f"{margin:.3f} nats",
            f"at least {MIN_MARGIN_NATS}",
            margin >= MIN_MARGIN_NATS,
        ),
        Line("test MLM loss, best checkpoint", f"{losses['test']:.3f} nats"),
    ]


def _run_lines(trainer: Trainer) -> list[Line]:
    speed = _callback(trainer, TokenThroughput).report
    graphs = _callback(trainer, GraphMonitor).report
    is_hpu = trainer.strategy.root_device.type == "hpu"
    device = vendor.device_name() if is_hpu else "CPU"
    is_lazy = is_hpu and vendor.is_lazy()
    compiled, syncs = graphs.training_graphs, graphs.host_syncs_per_step
    peak = f"{vendor.memory_stats()['MaxInUse'] / 2**20:.1f} MiB" if is_hpu else _NOT_MEASURED
    return [
        Line(
            "token efficiency",
            f"{speed.token_efficiency:.1%}",
            f"over {MIN_TOKEN_EFFICIENCY:.0%}",
            speed.token_efficiency > MIN_TOKEN_EFFICIENCY,
        ),
        Line(
            "training graphs compiled",
            _NOT_MEASURED if compiled is None else f"{compiled}" if is_lazy else "none: eager mode",
            f"at most {MAX_TRAINING_GRAPHS}",
            None if compiled is None or not is_lazy else compiled <= MAX_TRAINING_GRAPHS,
        ),
        Line(
            "host syncs a training step",
            _NOT_MEASURED if syncs is None else f"{syncs:.3f}",
            "0 outside log steps",
            None if syncs is None else syncs == 0,
        ),
        *_device_lines(graphs),
        Line("peak device memory", peak),
        Line(
            "throughput",
            f"{speed.tokens_per_s:,.0f} tokens/s, {speed.samples_per_s:.0f} sequences/s",
        ),
        Line(
            "... of",
            f"{device}; a simulated card has the speed of this CPU ({torch.get_num_threads()} "
            "threads)",
        ),
    ]


def _device_lines(graphs: GraphReport) -> list[Line]:
    """What else the device did in a training step; nothing is asked for."""
    per_step = {
        "launches a training step": graphs.launches_per_step,
        "CPU fallbacks a training step": graphs.cpu_fallbacks_per_step,
    }
    lines = [
        Line(name, _NOT_MEASURED if count is None else f"{count:,.3f}")
        for name, count in per_step.items()
    ]
    causes = [_NOT_MEASURED] if graphs.recompilations is None else graphs.recompilations or ["none"]
    names = ["graphs compiled again", *["..."] * (_MAX_CAUSES - 1)]
    return lines + [Line(name, cause) for name, cause in zip(names, causes, strict=False)]


def _artifacts(cli: RecipeCLI, checkpoint: Path) -> list[Line]:
    """Export the model and draw its losses, beside the run's logs."""
    logs = next(logger for logger in cli.trainer.loggers if isinstance(logger, CSVLogger))
    logs.save()
    folder = Path(logs.log_dir)
    exported, drawing = folder / "export", folder / "loss.png"
    export(checkpoint, exported)
    curves = read_curves(folder / "metrics.csv", ("train/mlm_loss", "val/mlm_loss"))
    labels = ("training (one batch)", "validation")
    plot_losses(
        dict(zip(labels, curves.values(), strict=True)),
        cli.datamodule.unigram_reference("validation").strictest,
        "word frequency alone (unigram entropy)",
        "BERT on the documentation of Python and torch",
        drawing,
    )
    return [
        Line("loss curve", str(drawing)),
        Line("checkpoint", str(checkpoint)),
        Line("export for transformers", str(exported)),
    ]


def _print_table(lines: Sequence[Line]) -> None:
    width = max(len(line.name) for line in lines)
    marks = {True: "met   ", False: "MISSED", None: ""}
    print()
    for line in lines:
        goal = f"  {marks[line.is_met]} ({line.goal})" if line.is_met is not None else ""
        print(f"  {line.name:<{width}}  {line.value}{goal}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
