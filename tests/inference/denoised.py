"""Runs our denoising beside diffusers', in this process's mode; `python -m` prints what it saw."""

import json
import sys

import torch

from lightning_gaudi.inference import Denoiser, draw_latents, make_scheduler
from lightning_gaudi.simulator import statistics
from tests.helpers.diffusion import WIDTH, make_unet

NUM_STEPS = 6
SEEDS = (3, 5, 7)
SHAPE = (4, 8, 8)
CONFIG = {
    "_class_name": "DDIMScheduler",
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "clip_sample": False,
    "steps_offset": 1,
    "skip_prk_steps": True,
}


def embeddings(guidance):
    """[2 B, T, D], or [B, T, D] of the prompts alone."""
    drawn = torch.randn(2 * len(SEEDS), 8, WIDTH, generator=torch.Generator().manual_seed(1))
    return drawn if guidance != 1.0 else drawn[len(SEEDS) :]


@torch.no_grad()
def reference(name, guidance):
    """As diffusers' pipeline has it, on the CPU: [B, 4, 8, 8]."""
    unet, scheduler = make_unet(), make_scheduler(name, CONFIG)
    latents, generators = draw_latents(SEEDS, SHAPE)
    scheduler.set_timesteps(NUM_STEPS)
    latents = latents * scheduler.init_noise_sigma
    takes_noise = name in ("ddpm", "euler_ancestral", "dpm++", "euler", "heun", "ddim")
    noise = {"generator": generators} if takes_noise and name != "heun" else {}
    for step in scheduler.timesteps:
        inputs = latents if guidance == 1.0 else torch.cat([latents] * 2)
        inputs = scheduler.scale_model_input(inputs, step)
        told = unet(inputs, step, encoder_hidden_states=embeddings(guidance)).sample
        if guidance != 1.0:
            without, prompted = told.chunk(2)
            told = without + guidance * (prompted - without)
        latents = scheduler.step(told, step, latents, **noise).prev_sample
    return latents


def observe(name, device="cpu", engine="auto", guidance=5.0):
    """How far our latents are from the reference, and what a first and a second pass cost."""
    unet = make_unet().to(device)
    denoiser = Denoiser(unet, make_scheduler(name, CONFIG), NUM_STEPS, guidance, engine)
    expected, given = reference(name, guidance), embeddings(guidance).to(device)
    found = {"size": float(expected.abs().max())}
    for turn in ("first", "second"):
        latents, generators = draw_latents(SEEDS, SHAPE)
        latents = latents.to(device)
        statistics.reset_statistics()
        before = _num_graphs()
        made = denoiser(latents, given, generators=generators)
        found[f"{turn} syncs"] = sum(statistics.host_syncs().values())
        found[f"{turn} graphs"] = _num_graphs() - before
        found[f"{turn} launches"] = statistics.launches()
        found[f"{turn} difference"] = float((made.cpu() - expected).abs().max())
    return found


def _num_graphs():
    from lightning_gaudi import vendor

    return int(dict(vendor.metric("graph_compilation") or {}).get("TotalNumber", 0))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps({"name": name, **observe(name, "hpu")}))
