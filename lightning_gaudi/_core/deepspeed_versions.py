"""The versions of DeepSpeed and torch that are known to have run together on a Gaudi."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import NamedTuple

from lightning_gaudi.releases import minor


class Run(NamedTuple):
    """A DeepSpeed and a torch that somebody has run together on a Gaudi."""

    deepspeed: str
    """Major and minor of its version, or which of its branches."""
    torch: str
    """Major and minor."""
    gaudi_software: str
    card: str
    by: str
    """Who says so, and where."""


# A simulated card is not among them: its results are right, which tells nothing of a Gaudi's.
RUNS = (
    Run(
        "main branch since pull request 7313",
        "2.6",
        "1.21.0",
        "Gaudi 2",
        "DeepSpeed's tests, eager mode (`.github/workflows/hpu-gaudi2.yml`); a selection of its "
        "unit tests",
    ),
)
"""All that are known; docs/how-to/larger-models.md has them too."""


def is_tested(deepspeed: str, torch_version: str) -> bool:
    """Returns whether somebody is known to have run these two together on a Gaudi.

    Args:
        deepspeed: The version, such as `"0.19.0"`.
        torch_version: The same of torch.
    """
    return (minor(deepspeed), minor(torch_version)) in {run[:2] for run in RUNS}


def known_runs() -> str:
    """Returns the runs that are known, for a message."""
    return "; ".join(
        f"{run.deepspeed} with torch {run.torch} and Gaudi software {run.gaudi_software}"
        for run in RUNS
    )


@functools.cache
def warn_if_untested() -> None:
    """Says once, on rank 0, that nobody is known to have run these versions on a Gaudi."""
    import torch
    from lightning_utilities.core.rank_zero import rank_zero_warn

    installed = importlib.metadata.version("deepspeed")
    if is_tested(installed, torch.__version__):
        return
    rank_zero_warn(
        f"DeepSpeed {installed} with torch {torch.__version__} is untested on a Gaudi, as far as "
        f"is known; tested were {known_runs()}. Compare the first losses with another strategy's. "
        "To silence this: warnings.filterwarnings('ignore', message='DeepSpeed .* is untested')."
    )
