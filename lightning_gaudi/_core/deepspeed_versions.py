"""Which DeepSpeed was run with which torch and Gaudi software, and by whom."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import NamedTuple


class Pair(NamedTuple):
    """A DeepSpeed with a torch, and where they were run together."""

    deepspeed: str
    """Its version, or which of its branches."""
    torch: str
    """Major and minor."""
    gaudi_software: str
    where: str
    """`"Gaudi 2"`, or `"simulated"`."""
    by: str
    """Who says so, and where."""


PAIRS = (
    Pair(
        "main branch since pull request 7313",
        "2.6",
        "1.21.0",
        "Gaudi 2",
        "DeepSpeed's tests, eager mode (`.github/workflows/hpu-gaudi2.yml`); a selection of its "
        "unit tests",
    ),
    Pair("0.19", "2.13", "1.24, simulated", "simulated", "the tests of this package"),
)
"""All that is known. What a simulated card computes is right; how a Gaudi does it is not shown."""


def table() -> str:
    """Returns `PAIRS` in Markdown."""
    rows = [f"| {' | '.join(pair)} |" for pair in PAIRS]
    head = "| DeepSpeed | torch | Gaudi software | Run on | By |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def is_tested(deepspeed: str, torch_version: str) -> bool:
    """Returns whether somebody has run this pair on a Gaudi.

    Args:
        deepspeed: Major and minor, such as `"0.19"`.
        torch_version: The same of torch.
    """
    return any(
        pair.where != "simulated" and pair[:2] == (deepspeed, torch_version) for pair in PAIRS
    )


@functools.cache
def warn_if_untested() -> None:
    """Says once, on rank 0, that nobody is known to have run these versions on a Gaudi."""
    import torch
    from lightning_utilities.core.rank_zero import rank_zero_warn

    installed = importlib.metadata.version("deepspeed")
    deepspeed, found = (_minor(version) for version in (installed, torch.__version__))
    if is_tested(deepspeed, found):
        return
    known = "; ".join(
        f"{pair.deepspeed} with torch {pair.torch} and Gaudi software {pair.gaudi_software}"
        for pair in PAIRS
        if pair.where != "simulated"
    )
    rank_zero_warn(
        f"DeepSpeed {installed} with torch {torch.__version__} is untested on a Gaudi, as far as "
        f"is known; tested were {known}. Compare the first losses with another strategy's. To "
        "silence this: warnings.filterwarnings('ignore', message='DeepSpeed .* is untested')."
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
