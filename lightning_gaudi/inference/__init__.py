"""Inference with static shapes: text from decoder-only models of transformers, and its pace.

In reading order:

- `engine`: a step that is captured as an HPU graph, compiled, or run as it is.
- `latency`: what is measured, without what warmed up, and when the clock is read.
- `buckets`: prompts of mixed length in a few widths.
- `sampling`: the next token from logits, the same for any batch size.
- `decoding`: the tensors of one batch size and bucket, the prompt's step and a token's.
- `generation`: text, from prompts.
- `denoising`: pictures, from noise, by a UNet and a scheduler of diffusers.
"""

from .buckets import DEFAULT_BUCKETS, LeftPadded, pad_left
from .denoising import SCHEDULERS, Denoiser, denoise, draw_latents, make_scheduler
from .engine import Engine, Runner, resolve
from .generation import TextGenerator, generate
from .latency import LatencyReport, Stopwatch
from .sampling import Sampling

__all__ = [
    "DEFAULT_BUCKETS",
    "SCHEDULERS",
    "Denoiser",
    "Engine",
    "LatencyReport",
    "LeftPadded",
    "Runner",
    "Sampling",
    "Stopwatch",
    "TextGenerator",
    "denoise",
    "draw_latents",
    "generate",
    "make_scheduler",
    "pad_left",
    "resolve",
]
