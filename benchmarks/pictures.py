"""Pictures a second and launches a step: our denoising beside diffusers' own loop, one device.

    lightning-gaudi simulate --cards 1 -- python benchmarks/pictures.py

Both have the same random UNet, scheduler, embeddings and noise, and make latents of 4 pictures in
8 steps, in turns. Times of a simulated card say nothing of a Gaudi's; launches are the same there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from interleaved import Comparison, exit_code, table

from lightning_gaudi import vendor
from lightning_gaudi.inference import Denoiser, draw_latents
from lightning_gaudi.simulator import statistics

BATCH_SIZE, NUM_STEPS, GUIDANCE = 4, 8, 5.0
SHAPE, NUM_TOKENS, WIDTH = (4, 16, 16), 8, 32
OURS, THEIRS = "ours", "diffusers"


def make_pictures(side: str) -> Callable[[], object]:
    """One batch of latents, waited for."""
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


def describe(side: str) -> str:
    """Launches and host syncs of a step, once everything is compiled."""
    call = make_pictures(side)
    call()
    statistics.reset_statistics()
    call()
    launches = statistics.launches() / NUM_STEPS
    syncs = sum(statistics.host_syncs().values()) / NUM_STEPS
    return f"{side}: {launches:.1f} launches and {syncs:.1f} host syncs a step"


def main() -> int:
    """Measure, print a table, and return 1 if ours is slower."""
    if not vendor.is_available():
        print("This needs an hpu: run it through `lightning-gaudi simulate --cards 1 --`.")
        return 2
    torch.set_num_threads(1)
    comparison = Comparison("8 steps, 4 pictures", make_pictures, limit=1.05, calls=1, rounds=9)
    result = comparison.measure(OURS, THEIRS)
    print(table([result], OURS, THEIRS))
    for name, seconds in ((OURS, result.seconds), (THEIRS, result.reference_seconds)):
        print(f"{name}: {BATCH_SIZE / seconds:.2f} pictures a second")
    for side in (OURS, THEIRS):
        print(describe(side))
    return exit_code([result])


if __name__ == "__main__":
    sys.exit(main())
