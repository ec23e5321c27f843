"""Lets transformers' `from_pretrained` load into weights that are sharded as they are made."""

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
    """Tells transformers about DeepSpeed's stage 3 within the block.

    Otherwise it would fill whole weights, while those of stage 3 are empty.

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
        # A config without a batch size is refused. Any size will do, since nothing is trained here.
        held = integrations.HfDeepSpeedConfig({**config, _MICRO_BATCH: config.get(_MICRO_BATCH, 1)})
    except ImportError as error:  # without accelerate
        with _explained(f" It cannot be told: {error}"):
            yield
        return
    yield
    # transformers keeps a weak reference to it, so it counts only as long as this variable holds
    # it.
    del held


@contextmanager
def _explained(why: str = "") -> Iterator[None]:
    """Adds to an error what is needed to load a model of transformers."""
    try:
        yield
    except Exception as error:
        if _MODULE in sys.modules and hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(
                "from_pretrained() loads into the shards of ZeRO-3 where transformers is imported "
                f"before configure_model is called, and accelerate is installed.{why}"
            )
        raise
