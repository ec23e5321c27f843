"""What holds a card's memory, by category."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from lightning_gaudi._core.memory import report as memory_report
from lightning_gaudi.inference import Denoiser, TextGenerator, draw_latents, make_scheduler
from tests.helpers.diffusion import make_unet
from tests.inference.denoised import CONFIG, SEEDS, SHAPE, embeddings
from tests.inference.tiny_models import build


@pytest.fixture(autouse=True)
def _collected() -> None:
    """What other tests have left in cycles is on the card until Python collects it."""
    gc.collect()


@pytest.mark.slow
def test_bytes_are_told_by_category_and_what_is_shared_once() -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)).to("hpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8, device="hpu")).sum().backward()
    optimizer.step()
    weights = (8 * 4 + 4 + 4) * 4
    sizes = memory_report.by_category(nn.ModuleList([model, *model]), [optimizer])
    assert sizes["weights"] == weights + 2 * 4 * 4 + 8  # running statistics, and their count
    assert sizes["gradients"] == weights
    assert sizes["optimizer state"] == 2 * weights
    assert not any(sizes[name] for name in [*sizes][3:])


def test_a_cache_is_told_as_long_as_its_generator_is_there() -> None:
    model = build("GPT-2").to("hpu")
    generator = TextGenerator(model, engine="none", buckets=(8,))
    ids = torch.ones(3, 8, dtype=torch.long)
    generator(ids, torch.ones_like(ids), max_new_tokens=4)
    config = model.config
    sizes = memory_report.by_category(model, [])
    assert sizes["KV cache"] == 2 * config.num_hidden_layers * 3 * (8 + 4) * config.hidden_size * 4
    assert sizes["weights"] == sum(each.nbytes for each in [*model.parameters(), *model.buffers()])
    del generator
    assert memory_report.by_category(model, [])["KV cache"] == 0


@pytest.mark.slow
def test_latents_are_told_as_long_as_they_are_there() -> None:
    unet = make_unet().to("hpu")
    denoiser = Denoiser(unet, make_scheduler("ddim", CONFIG), num_steps=2, engine="none")
    noise, _ = draw_latents(SEEDS, SHAPE)
    found = denoiser(noise.to("hpu"), embeddings(denoiser.guidance).to("hpu"))
    assert memory_report.by_category(unet, [])["latents"] == found.nbytes
    del found
    gc.collect()
    assert memory_report.by_category(unet, [])["latents"] == 0
