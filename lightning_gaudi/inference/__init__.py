"""Inference with static shapes: text from decoder-only models of transformers, and its pace.

In reading order:

- `engine`: a step that is captured as an HPU graph, compiled, or run as it is.
- `latency`: what is measured, without what warmed up, and when the clock is read.
- `buckets`: prompts of mixed length in a few widths.
- `sampling`: the next token from logits, the same for any batch size.
- `plans`: which weights of a model lie on several cards in parts, and how they are cut.
- `parallel_layers`: the layers of which each card computes a part.
- `tensor_parallel`: a model in parts.
- `caches`: transformers' static cache, with its tensors in place.
- `decoding`: the tensors of one batch size and bucket, the prompt's step and a token's.
- `generation`: text, from prompts.
- `checkpoint_files`: what is in a folder of safetensors files.
- `loading`: weights from there onto a card, tensor by tensor.
- `memory`: what a card must hold, before anything is loaded.
- `denoising`: pictures, from noise, by a UNet and a scheduler of diffusers.
"""

from lightning_gaudi._core.hooks import has_values

from .buckets import DEFAULT_BUCKETS, LeftPadded, pad_left
from .denoising import SCHEDULERS, Denoiser, denoise, draw_latents, make_scheduler
from .engine import Engine, Runner, resolve
from .generation import TextGenerator, generate
from .latency import LatencyReport, Stopwatch
from .loading import load_weights
from .memory import MemoryTable, card_memory_bytes, check_fits, memory_table, parameter_bytes
from .sampling import Sampling
from .tensor_parallel import parallelize

__all__ = [
    "DEFAULT_BUCKETS",
    "SCHEDULERS",
    "Denoiser",
    "Engine",
    "LatencyReport",
    "LeftPadded",
    "MemoryTable",
    "Runner",
    "Sampling",
    "Stopwatch",
    "TextGenerator",
    "card_memory_bytes",
    "check_fits",
    "denoise",
    "draw_latents",
    "generate",
    "has_values",
    "load_weights",
    "make_scheduler",
    "memory_table",
    "pad_left",
    "parallelize",
    "parameter_bytes",
    "resolve",
]
