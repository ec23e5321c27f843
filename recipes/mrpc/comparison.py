"""The model's scores, and beside them what it must beat."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

_MODEL = "model"


class BaselineComparison(Callback):
    """Print F1 and accuracy of the model and of the baselines at the end of a run."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the last validation."""
        self._compare(trainer, pl_module, "validation", "val")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare, in `validate`; the validations of a fit are logged."""
        if trainer.state.fn == "validate":
            self._compare(trainer, pl_module, "validation", "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare on the test split."""
        self._compare(trainer, pl_module, "test", "test")

    def _compare(self, trainer: Trainer, pl_module: Any, split: str, stage: str) -> None:
        metrics = trainer.callback_metrics
        if not trainer.is_global_zero or f"{stage}/f1" not in metrics:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        num_pairs, num_evaluated = len(data.pairs[split]), pl_module.num_evaluated
        scores = {_MODEL: (float(metrics[f"{stage}/f1"]), float(metrics[f"{stage}/accuracy"]))}
        scores |= data.baselines(split)
        width = max(map(len, scores))
        print(f"\n{split}: {num_pairs} pairs, {data.origin}\n{'':<{width}}     F1  accuracy")
        for name, (f1, accuracy) in scores.items():
            print(f"{name:<{width}}  {f1:.4f}    {accuracy:.4f}")
        if num_evaluated != num_pairs:
            print(f"The model was measured on {num_evaluated} of the pairs only.")
        print(flush=True)
