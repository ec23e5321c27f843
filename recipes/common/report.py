"""Reports a run at its end: a table, a PNG and an HTML file beside its checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_gaudi.callbacks import GraphMonitor, MetricHistory, OnExitCheckpoint, TokenThroughput
from recipes.common import findings
from recipes.common.drawing import Panel, save_png, to_svg
from recipes.common.errors import line_of
from recipes.common.folders import run_folder, write_new
from recipes.common.page import page
from recipes.common.sections import Section, section, table

if TYPE_CHECKING:
    from recipes.common.training import RecipeModule

_MAX_SAID = 200
_MEASURED_IN = "validate", "test"


class RunReport(Callback):
    """Reports at the end of a fit, finished or not, what it reached, at what cost, and its files.

    The model adds what only it knows: `report_sections`, `references` (see `RecipeModule`). Figures
    come from the Trainer's `MetricHistory`, `TokenThroughput` and `GraphMonitor`, and are left out
    if these or the device do not have them. After `validate` and `test` it prints the scores, and
    which weights they belong to.

    Args:
        title: of the run.

    Attributes:
        sections: of the report, once it is made; more may be put in before `write`.
    """

    def __init__(self, title: str = "Run") -> None:
        self.title = title
        self.sections: list[Section] = []
        self._start = time.monotonic()
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._state, self._is_early = "", False
        self._panels: list[Panel] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets an earlier fit."""
        self._start, self._shapes = time.monotonic(), set()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Notes the shapes of the batch, each of which is compiled."""
        if isinstance(batch, Mapping):
            tensors = (value for value in batch.values() if isinstance(value, Tensor))
            self._shapes.add(tuple(tuple(value.shape) for value in tensors))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports a fit that was finished."""
        self._report(trainer, pl_module, None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Reports a fit that has taken steps before it ended early."""
        if trainer.state.fn == "fit" and trainer.global_step:
            self._report(trainer, pl_module, exception)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the scores of `validate`; the validations of a fit are logged."""
        if trainer.state.fn == "validate":
            self._print_scores(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the scores of `test`."""
        self._print_scores(trainer, pl_module)

    def write(self, trainer: Trainer) -> None:
        """Writes report.png and reports.html with the sections as they are now."""
        folder = run_folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        if self._panels:
            save_png(self.title, self._panels, folder / "report.png")
        html = page(
            self.title,
            self._state,
            self._is_early,
            to_svg(self._panels),
            self.sections,
            f"Written by lightning_gaudi, {time.strftime('%Y-%m-%d %H:%M')}.",
        )
        write_new(folder / "report.html", html)

    def _report(self, trainer: Trainer, pl_module: Any, exception: BaseException | None) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._is_early = exception is not None
        self._state = _state(trainer, exception, time.monotonic() - self._start)
        self._panels = _panels(trainer, pl_module)
        self.sections = [
            section(f"{self.title}: {self._state}", findings.settings(trainer, pl_module)),
            section("Losses and scores", findings.scores(trainer)),
            *pl_module.report_sections("val"),
            section(
                "Speed, without warm-up",
                findings.speed(_find(trainer, TokenThroughput), pl_module.samples),
            ),
            section(
                "Device", findings.device(trainer, _find(trainer, GraphMonitor), len(self._shapes))
            ),
            section("Slow ranks", findings.slow_ranks(trainer)),
            section(
                "Files",
                findings.files(trainer, run_folder(trainer), has_picture=bool(self._panels)),
            ),
        ]
        print(table(self.sections), flush=True)
        self.write(trainer)

    def _print_scores(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero or trainer.state.fn not in _MEASURED_IN:
            return
        stage = "val" if trainer.state.fn == "validate" else "test"
        of = [section("Weights", [("scored are", findings.weights(trainer, pl_module))])]
        print(table([*of, *pl_module.report_sections(stage)]), flush=True)


def _find(trainer: Trainer, kind: type) -> Any:
    found = (each for each in trainer.callbacks if isinstance(each, kind))  # type: ignore[attr-defined]
    return next(found, None)


def _state(trainer: Trainer, exception: BaseException | None, seconds: float) -> str:
    done = f"after {trainer.global_step:,} steps and {_duration(seconds)}"
    if exception is None:
        return f"finished {done}"
    exiting = _find(trainer, OnExitCheckpoint)
    if exiting is not None and exiting.signal is not None:
        by = "Ctrl-C" if exiting.signal == signal.SIGINT else exiting.signal.name
    else:
        said = shorten(line_of(exception), _MAX_SAID, placeholder=" ...")
        by = f"{type(exception).__name__}: {said}".rstrip(": ")
    return f"ended early {done}, by {by}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def _panels(trainer: Trainer, module: RecipeModule) -> list[Panel]:
    """Returns the plots of losses and of the recipe's score, if there is anything to draw."""
    history = _find(trainer, MetricHistory)
    if history is None:
        return []
    shown = {
        "loss": {
            "training (mean of the log interval)": history.training.get(
                f"train/{module.progress_loss}"
            ),
            "validation": history.validation.get(module.validation_loss),
        },
        module.validation_score: {"validation": history.validation.get(module.validation_score)},
    }
    panels = []
    for name, curves in shown.items():
        if drawn := {label: curve for label, curve in curves.items() if curve}:
            panels.append(Panel(name, drawn, module.references(name)))
    return panels
