"""Makes the lines of a report that every recipe has, without those that were not measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor, MetricHistory, TokenThroughput
from lightning_gaudi.callbacks.exit_checkpoint import newest_checkpoint
from recipes.common.folders import place_of
from recipes.common.sections import Row

Line = tuple[str, str | None]

MAX_CAUSES = 4


def is_hpu(trainer: Trainer) -> bool:
    """Returns whether the Trainer's device is a Gaudi, simulated or not."""
    return trainer.strategy.root_device.type == "hpu"


def settings(trainer: Trainer, module: Any) -> list[Line]:
    """Returns the settings that the figures of this run depend on."""
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    device = vendor.device_name() if is_hpu(trainer) else "CPU"
    accumulated = trainer.accumulate_grad_batches
    return [
        ("device", f"{trainer.world_size} x {device}"),
        ("mode", _mode(trainer, module)),
        ("precision", _precision(trainer)),
        ("strategy", type(trainer.strategy).__name__),
        ("gradients accumulated", f"{accumulated} batches" if accumulated > 1 else None),
        ("parameters", f"{num_parameters:,}" if trainer.world_size == 1 else None),
        ("started from", str(trainer.ckpt_path) if trainer.ckpt_path else None),
    ]


def _precision(trainer: Trainer) -> str:
    is_fp8 = getattr(trainer.precision_plugin, "computes_in_fp8", False)
    return f"fp8, beside {trainer.precision}" if is_fp8 else str(trainer.precision)


def _mode(trainer: Trainer, module: Any) -> str | None:
    compiled = [each for each in module.modules() if each._compiled_call_impl is not None]
    how = ", torch.compile" if compiled or getattr(module, "_compiler_ctx", None) else ""
    if not is_hpu(trainer):
        return f"eager{how}"
    return ("lazy" if vendor.is_lazy() else "eager") + how


def scores(trainer: Trainer) -> Iterator[Line]:
    """Yields the first and last value of each curve, and the best of the one that is monitored."""
    found = [each for each in trainer.callbacks if isinstance(each, MetricHistory)]  # type: ignore[attr-defined]
    history = found[0] if found else MetricHistory()
    for name, curve in history.training.items():
        if "loss" in name:
            (_, first), (step, last) = curve[0], curve[-1]
            yield name, f"{last:.4f} (mean to step {step:,}; first interval: {first:.4f})"
    monitor = getattr(trainer.checkpoint_callback, "monitor", None)
    for name, curve in history.validation.items():
        step, last = curve[-1]
        text = f"{last:.4f} (step {step:,})"
        if name == monitor and len(curve) > 1:
            choose = min if trainer.checkpoint_callback.mode == "min" else max  # type: ignore[union-attr]
            step, value = choose(curve, key=lambda point: point[1])
            text += f"; best: {value:.4f} (step {step:,})"
        yield name, text


def weights(trainer: Trainer, module: Any) -> str:
    """Returns the weights that a score belongs to, in words."""
    if trainer.ckpt_path:
        return f"those of {trainer.ckpt_path}"
    if trainer.global_step:
        return f"those after step {trainer.global_step:,} of this process"
    untrained = module.untrained()
    if untrained is None:
        return f"those of model.name={module.hparams['name']}, as published"
    return f"NOT TRAINED: {untrained}. Give --ckpt_path, a .ckpt file that `fit` wrote"


def speed(throughput: TokenThroughput | None, samples: str = "samples") -> list[Line]:
    """Returns the throughput of all cards after the warm-up; for pictures, without tokens."""
    if throughput is None or not throughput.report.num_steps:
        return []
    report = throughput.report
    pace = (f"{samples} a second", f"{report.samples_per_s:,.1f}")
    tokens = [
        ("tokens a second", f"{report.tokens_per_s:,.0f} (padding not counted)"),
        pace,
        ("token efficiency", f"{report.token_efficiency:.1%} of the tokens are no padding"),
    ]
    flops, mfu = report.flops_per_s, report.mfu
    return [
        *(tokens if samples == "samples" else [pace]),
        ("operations a second", None if flops is None else f"{flops / 1e12:,.4g} TFLOP"),
        ("of the peak (MFU)", None if mfu is None else f"{mfu:.1%}"),
        ("measured over", f"{report.num_steps:,} batches, {report.seconds:.1f} s"),
    ]


def device(trainer: Trainer, monitor: GraphMonitor | None, num_shapes: int) -> list[Line]:
    """Returns the lines on the first card: graphs, launches, waits and memory."""
    report = None if monitor is None else monitor.report
    lines: list[Line] = [("shapes of training batches", f"{num_shapes}")]
    if report is not None:
        compiled = report.graph_compilations or {}
        counts = {
            "graphs compiled in training": report.training_graphs,
            "graphs compiled in validation": compiled.get("validation"),
            "launches a training step": report.launches_per_step,
            "CPU fallbacks a training step": report.cpu_fallbacks_per_step,
            "host syncs a training step": report.host_syncs_per_step,
            "host syncs a log step": report.host_syncs_per_log_step,
        }
        lines += [
            (name, None if count is None else f"{round(count, 2):,.6g}")
            for name, count in counts.items()
        ]
        causes = report.recompilations or []
        names = ["graphs compiled again", *["..."] * (MAX_CAUSES - 1)]
        lines += zip(names, causes, strict=False)
    if is_hpu(trainer):
        peak = vendor.memory_stats()["MaxInUse"]
        lines.append(("peak memory of the first card", f"{peak / 2**20:,.1f} MiB"))
    else:
        lines.append(("threads of the CPU", f"{torch.get_num_threads()}"))
    return lines


def files(trainer: Trainer, folder: Path, *, has_picture: bool) -> list[Line | Row]:
    """Returns the files that the run leaves.

    Args:
        trainer: the Trainer of the run.
        folder: the folder of the report.
        has_picture: whether there are curves; a short run has none, and no picture of them.
    """
    checkpoint = trainer.checkpoint_callback
    best = getattr(checkpoint, "best_model_path", "")
    newest = newest_checkpoint(trainer)
    paths = {
        "checkpoint, newest": newest,
        "checkpoint, best": best if best and str(best) != str(newest) else None,
        "settings": folder / "config.yaml",
        "logs": folder / "metrics.csv",
    }
    lines: list[Line | Row] = [
        (name, str(path)) for name, path in paths.items() if path and place_of(path).exists()
    ]
    report = f"{folder / 'report.html'}"
    return [*lines, ("this report", f"{report}, report.png" if has_picture else report)]


def slow_ranks(trainer: Trainer) -> list[tuple[str, str]]:
    """Returns what the watchdog has said of ranks that are slower than the others."""
    told = getattr(trainer.strategy, "slow_ranks", [])
    return [(f"rank {text.split()[1]}", text) for text in told if text.startswith("rank ")]
