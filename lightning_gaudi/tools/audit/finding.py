"""Defines a finding of an audit, and what to change where the line is a library's."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase


class Weight(enum.IntEnum):
    """How much a finding matters; the heaviest are shown first."""

    NUMBERS = 1
    """A card computes something else, or slows down now and then."""
    WAITS = 2
    """The host waits in each step, and the card then has nothing to do."""
    LAUNCHES = 3
    """The card gets its work in small pieces."""
    FALLS_BACK = 4
    """The host computes, between two copies."""
    COMPILES = 5
    """Graphs are compiled again and again, which takes seconds to minutes each."""
    FAILS = 6
    """A card refuses it, or may hang."""


@dataclass
class Finding:
    """A line that would cost something on a Gaudi."""

    rule: str
    """A key of the rules of the card's, or one of this audit's own: see docs/how-to/audit.md."""
    weight: Weight
    file: str
    line: int
    function: str
    message: str
    """What a Gaudi does with it, as a sentence."""
    fix: str
    """The cheapest change that helps, as a sentence; empty where a library has no setting."""
    num_steps: int = 0
    """In how many of the judged steps it was met."""
    count: int = 0
    """How often it was met in all."""
    via: str = ""
    """The line of a library that it got to."""
    ranks: tuple[int, ...] = (0,)
    phase: str = ""
    """As in `record.Line`."""
    source: str = ""
    """Who says so."""

    @property
    def place(self) -> tuple[str, str, int, str]:
        """What two findings have in common that are one."""
        return self.rule, self.file, self.line, self.via


_LOGGED = "transformers logs in each step: raise logging_steps of TrainingArguments."

_FIXES: dict[tuple[str, str, str], str] = {
    ("item-waits", "lightning/fabric/fabric.py", "clip_gradients"): (
        "Pass error_if_nonfinite=False to fabric.clip_gradients: to check the norm, it reads it."
    ),
    ("item-waits", "lightning/fabric/utilities/apply_func.py", "to_item"): (
        "Lightning reads what self.log logs with prog_bar=True in each step, whatever the bar's "
        "refresh rate: leave prog_bar=True out. For loggers raise log_every_n_steps of the Trainer."
    ),
    ("item-waits", "transformers/trainer.py", "_maybe_log_save_evaluate"): _LOGGED,
    ("copy-to-host-waits", "transformers/trainer.py", "_maybe_log_save_evaluate"): _LOGGED,
    ("item-waits", "transformers/trainer.py", "_run_epoch"): (
        "Pass logging_nan_inf_filter=False to TrainingArguments: the filter reads each loss."
    ),
    ("item-waits", "transformers/masking_utils.py", "*"): (
        "transformers reads masks and positions for a shortcut, and not in a compiled model: pass "
        "torch_compile=True, torch_compile_backend='hpu_backend' to TrainingArguments; of "
        "Lightning compile='model' to the strategy."
    ),
    ("copy-to-card-blocks", "accelerate/utils/operations.py", "*"): (
        "Pass accelerator_config={'non_blocking': True} to TrainingArguments, or of accelerate "
        "itself dataloader_config=DataLoaderConfiguration(non_blocking=True) to Accelerator."
    ),
    ("*", "torchmetrics/functional/*", "*_tensor_validation"): (
        "Pass validate_args=False to the metric: it looks at all values of each batch."
    ),
    ("bincount-dynamic", "torchmetrics/utilities/data.py", "_bincount"): (
        "Pass deterministic=True to the Trainer, or call torch.use_deterministic_algorithms(True): "
        "the metric then counts by comparing."
    ),
    ("nonzero-dynamic", "torchmetrics/functional/*", "_binary_clf_curve"): (
        "Pass thresholds=100 to the metric: it then counts at so many, and keeps no scores."
    ),
    ("item-waits", "torchmetrics/aggregation.py", "_cast_and_nan_check_input"): (
        "Pass nan_strategy='disable' to the metric: it looks for NaN in each value."
    ),
}
"""The settings of libraries that help, by patterns for a rule, a file and a function.

Source: the files named, of Lightning 2.6.6, transformers 5.23, accelerate 1.15 and torchmetrics
1.9.0. `tests/tools/audit/test_fixes.py` applies each and checks that the finding is gone.
"""


def fix(rule: str, via: str, otherwise: str) -> str:
    """Returns what to change for a finding, or "" for a library's line without a setting.

    Args:
        rule: Its rule.
        via: The library's line that it got to, as in `record.Line`.
        otherwise: What helps where it is the user's own line.
    """
    if not via:
        return otherwise
    file, _, function = via.partition(", ")
    names = (rule, file.rpartition(":")[0], function)
    for patterns, found in _FIXES.items():
        if all(map(fnmatchcase, names, patterns)):
            return found
    return ""
