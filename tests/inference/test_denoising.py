"""Latents are those of diffusers' own loop, and no step waits for the device."""

import json

import pytest
import torch

from lightning_gaudi.inference import SCHEDULERS, Denoiser, denoise, draw_latents, make_scheduler
from tests.helpers.diffusion import make_unet
from tests.helpers.forked import fork_module
from tests.inference.denoised import CONFIG, SEEDS, SHAPE, embeddings, observe, reference

TOLERANCE = 1e-5
FAST = ("ddim", "pndm")
"""The schedulers that fast tests capture."""
# diffusers 0.42 with numpy 2 (scheduling_dpmsolver_multistep.py).
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"
)


def check(found, num_graphs):
    assert found["size"] > 1
    for turn in ("first", "second"):
        assert found[f"{turn} difference"] <= TOLERANCE
    assert 0 < found["first graphs"] <= num_graphs
    assert found["second graphs"] == found["second syncs"] == 0


@pytest.mark.slow_but("euler_ancestral", "euler")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_on_the_cpu_latents_are_those_of_diffusers(name):
    found = observe(name)
    assert found["size"] > 1
    assert found["first difference"] <= TOLERANCE
    assert found["second difference"] <= TOLERANCE


@pytest.mark.parametrize("names", [FAST, pytest.param(tuple(SCHEDULERS), marks=pytest.mark.slow)])
def test_captured_no_step_waits_and_a_second_pass_compiles_nothing(names):
    env = {"PT_HPU_LAZY_MODE": "1"}
    out = fork_module("tests.inference.denoised", *names, env=env, timeout=250)
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert [row["name"] for row in rows] == list(names)
    for row in rows:
        # The UNet, and the scheduler's first, further and last steps.
        check(row, num_graphs=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_compiled_no_step_of_any_scheduler_waits(name):
    check(observe(name, "hpu", "compile"), num_graphs=1)


def test_without_guidance_the_pass_without_a_prompt_is_left_out():
    rows = []
    unet = make_unet()
    unet.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    latents, _ = draw_latents(SEEDS, SHAPE)
    scheduler = make_scheduler("ddim", CONFIG)
    made = denoise(unet, scheduler, latents, embeddings(1.0), 6, guidance=1.0)
    assert set(rows) == {len(SEEDS)}
    assert (made - reference("ddim", 1.0)).abs().max() <= TOLERANCE
    with pytest.raises(ValueError, match=r"has 6 rows, but 3 pictures at guidance=1\.0 need 3"):
        denoise(unet, scheduler, latents, embeddings(5.0), 6, guidance=1.0)


@pytest.mark.parametrize("name", ["ddim", "euler_ancestral"])
def test_a_picture_depends_on_its_own_seed_and_not_on_its_batch(name):
    unet, given = make_unet(), embeddings(5.0)
    latents, generators = draw_latents(SEEDS, SHAPE)
    together = denoise(
        unet, make_scheduler(name, CONFIG), latents, given, 6, 5.0, generators=generators
    )
    for row, seed in enumerate(SEEDS):
        latents, generators = draw_latents([seed], SHAPE)
        own = given[[row, len(SEEDS) + row]]
        alone = denoise(
            unet, make_scheduler(name, CONFIG), latents, own, 6, 5.0, generators=generators
        )
        # Latents of random weights reach 30; tests/recipes has pictures, from 0 to 1.
        assert (together[row] - alone[0]).abs().max() <= TOLERANCE * together.abs().max()


def test_one_denoiser_takes_batches_of_several_sizes():
    unet, given = make_unet(), embeddings(5.0)
    denoiser = Denoiser(unet, make_scheduler("euler", CONFIG), 4, 5.0)
    latents, _ = draw_latents(SEEDS, SHAPE)
    together = denoiser(latents, given)
    alone = denoiser(latents[:1], given[[0, len(SEEDS)]])
    assert (together[:1] - alone).abs().max() <= TOLERANCE * together.abs().max()
    assert torch.equal(denoiser(latents, given), together)


def test_a_scheduler_is_the_models_own_or_one_that_is_named():
    assert type(make_scheduler(None, CONFIG)).__name__ == "DDIMScheduler"
    for name, kind in SCHEDULERS.items():
        made = make_scheduler(name, {**CONFIG, "thresholds_of_another": 1})
        assert type(made).__name__ == kind
        assert made.config.beta_end == CONFIG["beta_end"]


def test_another_scheduler_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no scheduler 'eulr'\. Did you mean 'euler'\? There are"):
        make_scheduler("eulr", CONFIG)
    with pytest.raises(ValueError, match=r"own scheduler, UniPCMultistepScheduler, .* Name one of"):
        make_scheduler(None, {**CONFIG, "_class_name": "UniPCMultistepScheduler"})


def test_wrong_numbers_are_refused():
    unet, scheduler = make_unet(), make_scheduler("ddim", CONFIG)
    latents, generators = draw_latents(SEEDS, SHAPE)
    with pytest.raises(ValueError, match="num_steps must be at least 1, but is 0"):
        Denoiser(unet, scheduler, 0)
    with pytest.raises(ValueError, match="2 generators for 3 pictures"):
        denoise(unet, scheduler, latents, embeddings(5.0), 2, generators=generators[:2])
    with pytest.raises(ValueError, match="engine='graph' is for the HPU"):
        denoise(unet, scheduler, latents, embeddings(5.0), 2, engine="graph")
