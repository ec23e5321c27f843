"""Prints at the end of `fit` and `predict` the figures of a run beside the published ones."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import TokenThroughput
from lightning_gaudi.published import Figure, NoRoom, PublishedRun
from lightning_gaudi.untrusted import shown
from recipes.common import sections
from recipes.common.published import Row, Run, compare, differing_settings, render
from recipes.common.report import RunReport

_SIMULATED_ALONE = "host_sync"
"""A metric of the vendor's package that only a simulated card has."""


class PublishedComparison(Callback):
    """Measures what was published, and prints both.

    `rows` and `reasons` have the result after `fit`: a report may show them in its own way.

    Args:
        run: the published run.
        config: the settings of this one.
    """

    def __init__(self, run: Run, config: Mapping[str, Any]) -> None:
        self.run, self.config = run, config
        self.rows: list[Row] = []
        self.reasons: list[str] = []
        """Why the figures cannot be compared; empty if they can."""
        self._hardware: str | None = None
        self._seconds = {"train": 0.0, "val": 0.0}
        self._clock = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock, and notes the card, which the model has left at the end of `fit`."""
        self._hardware = _hardware(pl_module)
        self._seconds = {"train": 0.0, "val": 0.0}
        self._clock = time.perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads the clock: the time of the training until here is known."""
        self._read_clock("train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads the clock; only the last validation counts."""
        self._seconds["val"] = 0.0
        self._read_clock("val")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock."""
        self._read_clock("train")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares the figures, and prints the comparison once."""
        self._compare(trainer, self._measured(trainer))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes the card."""
        self._hardware = _hardware(pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compares what the model has measured, if anything (`figures`), and prints it once."""
        if hasattr(pl_module, "figures"):
            self._compare(trainer, pl_module.figures())  # type: ignore[operator]

    def published_run(self) -> PublishedRun:
        """Returns the run that `lightning-gaudi plan`, which trains nothing, compares with."""
        return planned_run(self.run, self.config)

    def _compare(self, trainer: Trainer, measured: Mapping[str, float]) -> None:
        self.reasons = [*_no_such_card(self.run, self._hardware), *_cut_short(self.run, trainer)]
        self.reasons += differing_settings(self.run, self.config)
        self.rows = compare(self.run, measured, self._hardware)
        if trainer.is_global_zero:
            print(shown(render(self.run, self.rows, self.reasons)), flush=True)
            self._add_to_report(trainer)

    def _add_to_report(self, trainer: Trainer) -> None:
        """Adds the comparison to the files of the report, which was made before."""
        title = f"Published run {self.run.name}: {self.run.title}"
        reasons = [("not comparable", reason) for reason in self.reasons]
        rows = [_line(row, is_judged=not reasons) for row in self.rows]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunReport) and callback.sections:
                callback.sections.append(sections.section(title, [*rows, *reasons]))
                callback.write(trainer)

    def _read_clock(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name] += now - self._clock
        self._clock = now

    def _measured(self, trainer: Trainer) -> dict[str, float]:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        found["train_seconds"] = self._seconds["train"]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, TokenThroughput) and callback.report.num_steps:
                found["train_samples_per_s"] = callback.report.samples_per_s
        loader = trainer.val_dataloaders
        if self._seconds["val"] and hasattr(loader, "dataset"):
            found["val_samples_per_s"] = len(loader.dataset) / self._seconds["val"]
        return found


def planned_run(run: Run, config: Mapping[str, Any]) -> PublishedRun:
    """Returns a published run in the form that a plan takes.

    Args:
        run: the published one.
        config: the settings of what is planned.
    """
    figures = [
        Figure(
            name=figure.name,
            value=figure.value,
            unit=figure.unit,
            hardware=figure.hardware,
            source=figure.source,
            batch_size=figure.batch_size or run.batch_size,
        )
        for figure in (*run.figures, *run.elsewhere)
    ]
    no_room = [
        NoRoom(each.hardware, each.batch_size or run.batch_size, each.source)
        for each in run.no_room
    ]
    num_steps = run.settings.get("trainer.max_steps")
    return PublishedRun(
        name=run.name,
        title=run.title,
        num_cards=run.num_cards,
        num_steps=num_steps,
        figures=tuple(figures),
        no_room=tuple(no_room),
        differing=tuple(differing_settings(run, config)),
    )


def _line(row: Row, *, is_judged: bool) -> sections.Row:
    figure = row.figure
    published = f"{figure.value:g} {figure.unit}".rstrip()
    ours = "not measured" if row.measured is None else f"{row.measured:g} {figure.unit}".rstrip()
    difference = "" if row.difference is None else f" ({row.difference:+.1%})"
    return sections.Row(
        figure.name,
        f"{ours}{difference}; published for {figure.hardware}: {published}",
        f"no more than {figure.tolerance:.0%} worse",
        row.is_within if is_judged else None,
    )


def _hardware(module: LightningModule) -> str | None:
    """Returns Gaudi, Gaudi 2 or Gaudi 3; None for a simulated card and any other device."""
    if module.device.type != "hpu" or vendor.metric(_SIMULATED_ALONE) is not None:
        return None
    found = re.match(r"GAUDI(\d?)", vendor.device_name().upper())
    return f"Gaudi {found[1]}".strip() if found else None


def _no_such_card(run: Run, hardware: str | None) -> list[str]:
    if hardware in run.hardware:
        return []
    ours = f"on {hardware}" if hardware else "simulated, or on no Gaudi"
    return [f"this run was {ours}, the published one on {' or '.join(run.hardware)}"]


def _cut_short(run: Run, trainer: Trainer) -> list[str]:
    """Returns in what a run had fewer cards, batches or steps than the settings say."""
    found = []
    if trainer.world_size != run.num_cards:
        found.append(f"{trainer.world_size} card(s), not {run.num_cards}")
    if trainer.state.fn == "predict":
        limit = trainer.limit_predict_batches
        return found if limit in (None, 1.0) else [*found, f"trainer.limit_predict_batches={limit}"]
    for name in ("limit_train_batches", "limit_val_batches"):
        if (value := getattr(trainer, name)) not in (None, 1.0):
            found.append(f"trainer.{name} is {value}")
    if trainer.interrupted or trainer.global_step < trainer.estimated_stepping_batches:
        planned = trainer.estimated_stepping_batches
        found.append(f"the run ended after {trainer.global_step} of {planned:.0f} steps")
    return found
