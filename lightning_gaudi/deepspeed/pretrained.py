"""`from_pretrained` of transformers where weights are made in shards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_MODULE = "transformers.integrations"
_MICRO_BATCH = "train_micro_batch_size_per_gpu"


@contextmanager
def loads_into_shards(config: Mapping[str, Any]) -> Iterator[None]:
    """Tells transformers of DeepSpeed's stage 3 for the time of a `with` block.

    It fills whole weights otherwise, and the ones of stage 3 are empty. Outside of the block models
    load as always.

    Source: transformers' documentation, "DeepSpeed", Non-Trainer integration.

    Args:
        config: DeepSpeed's settings, of stage 3.
    """
    if "transformers" not in sys.modules:
        with _explained():
            yield
        return
    try:
        integrations: Any = importlib.import_module(_MODULE)
        # Any size: nothing is trained in the block, and a config without one is refused.
        held = integrations.HfDeepSpeedConfig({**config, _MICRO_BATCH: config.get(_MICRO_BATCH, 1)})
    except ImportError as error:  # without accelerate
        with _explained(f" It cannot be told: {error}"):
            yield
        return
    yield
    del held


@contextmanager
def _explained(why: str = "") -> Iterator[None]:
    """Says what is missing where a model of transformers cannot be loaded."""
    try:
        yield
    except Exception as error:
        if _MODULE in sys.modules and hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(
                "from_pretrained() loads into the shards of ZeRO-3 where transformers is imported "
                f"before configure_model is called, and accelerate is installed.{why}"
            )
        raise
