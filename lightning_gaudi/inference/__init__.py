"""Inference with static shapes: text from decoder-only models of transformers, and its pace.

In reading order:

- `engine`: a step that is captured as an HPU graph, compiled, or run as it is.
- `latency`: what is measured, without what warmed up, and when the clock is read.
- `buckets`: prompts of mixed length in a few widths.
- `sampling`: the next token from logits, the same for any batch size.
- `decoding`: the tensors of one batch size and bucket, the prompt's step and a token's.
- `generation`: text, from prompts.
"""

from .buckets import DEFAULT_BUCKETS, LeftPadded, pad_left
from .engine import Engine, Runner, resolve
from .generation import TextGenerator, generate
from .latency import LatencyReport, Stopwatch
from .sampling import Sampling

__all__ = [
    "DEFAULT_BUCKETS",
    "Engine",
    "LatencyReport",
    "LeftPadded",
    "Runner",
    "Sampling",
    "Stopwatch",
    "TextGenerator",
    "generate",
    "pad_left",
    "resolve",
]
