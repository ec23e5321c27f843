"""Compares our denoising with diffusers' own loop on one card: time, and launches a step.

Both have the same random UNet, scheduler, embeddings and noise, and make latents of 4 pictures in
8 steps, in turns. Times on a simulated card say nothing of a Gaudi, but launches are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

from benchmarks.harness.interleaved import Comparison, Effort
from benchmarks.harness.rows import Row
from lightning_gaudi.inference import Denoiser, draw_latents
from lightning_gaudi.simulator import statistics

BATCH_SIZE, NUM_STEPS, GUIDANCE = 4, 8, 5.0
SHAPE, NUM_TOKENS, WIDTH = (4, 16, 16), 8, 32
OURS, THEIRS = "ours", "diffusers"


def make_pictures(side: str) -> Callable[[], object]:
    """Returns a call that makes a batch of latents, and waits for it."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=SHAPE[-1],
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        norm_num_groups=8,
    )
    unet = unet.eval().to("hpu")
    scheduler = DDIMScheduler(clip_sample=False, steps_offset=1)
    latents = draw_latents(range(BATCH_SIZE), SHAPE)[0].to("hpu")
    without, prompted = torch.randn(2, BATCH_SIZE, NUM_TOKENS, WIDTH).to("hpu")
    if side == OURS:
        denoiser = Denoiser(unet, scheduler, NUM_STEPS, GUIDANCE)
        embeddings = torch.cat([without, prompted])
        return lambda: denoiser(latents, embeddings).cpu()
    pipeline = StableDiffusionPipeline(
        *(None, None, None, unet, scheduler, None, None), requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return lambda: pipeline(
        prompt_embeds=prompted,
        negative_prompt_embeds=without,
        latents=latents,
        num_inference_steps=NUM_STEPS,
        guidance_scale=GUIDANCE,
        output_type="latent",
    ).images.cpu()


def counted(side: str) -> tuple[float, float]:
    """Returns the launches and host syncs of a step, once everything is compiled."""
    call = make_pictures(side)
    call()
    statistics.reset_statistics()
    call()
    launches = statistics.launches() / NUM_STEPS
    syncs = sum(statistics.host_syncs().values()) / NUM_STEPS
    return launches, syncs


def measure(effort: Effort) -> list[Row]:
    """Compares the times of a batch, and the launches and waits of its steps."""
    torch.set_num_threads(1)
    name = f"{NUM_STEPS} steps, {BATCH_SIZE} pictures, against {THEIRS}"
    timed = Comparison(name, make_pictures, limit=1.05, calls=1, rounds=9)
    counts = {side: counted(side) for side in (OURS, THEIRS)}
    return [
        timed.measure(OURS, THEIRS, effort),
        *(
            Row(f"pictures: {what}", mine, "a step", detail=f"{THEIRS}: {theirs:.1f}")
            for what, mine, theirs in zip(("launches", "host syncs"), *counts.values(), strict=True)
        ),
    ]
