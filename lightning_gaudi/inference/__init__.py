"""Generates text and pictures with static shapes, and measures how long that takes.

In reading order:

- `engine`: runs a step that is captured as an HPU graph, compiled, or neither.
- `latency`: measures calls without those that warm up.
- `buckets`: pads prompts of mixed length to a few widths.
- `sampling`: draws the next token from logits, the same one at any batch size.
- `plans`: decides which weights of a model are cut up for several cards, and how.
- `parallel_layers`: the layers of which each card computes a part.
- `tensor_parallel`: cuts a model up.
- `caches`: makes transformers' static cache with its tensors in place.
- `decoding`: the tensors of one batch size and bucket, the prompt's step and a token's.
- `generation`: text, from prompts.
- `checkpoint_files`: what is in a folder of safetensors files.
- `loading`: weights from there onto a card, tensor by tensor.
- `fp8`: linear layers in fp8, by scales of inputs that were seen before.
- `memory`: what a card must hold, before anything is loaded.
- `denoising`: pictures, from noise, by a UNet and a scheduler of diffusers.
"""

from lightning_gaudi._core.hooks import has_values

from .buckets import DEFAULT_BUCKETS, LeftPadded, pad_left
from .denoising import SCHEDULERS, Denoiser, denoise, draw_latents, make_scheduler
from .engine import Engine, Runner, resolve
from .fp8 import Fp8Linear, to_fp8
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
    "Fp8Linear",
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
    "to_fp8",
]
