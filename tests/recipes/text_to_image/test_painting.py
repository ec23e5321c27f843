"""Pictures are those of diffusers' own pipelines, in any batch, on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recipes.common.errors import UserError
from recipes.text_to_image.painting import Painter, PaintingSettings
from recipes.text_to_image.parts import load
from recipes.text_to_image.requests import make_requests
from tests.helpers.diffusion import KINDS, make_pipeline
from tests.helpers.forked import fork_python
from tests.recipes.text_to_image.conftest import WARNINGS

pytestmark = pytest.mark.filterwarnings(WARNINGS)
PROMPTS = ("a red seven", "a blue zero", "a turquoise three")
NEGATIVES = ("a green nine", "a golden one", "zero")
TOLERANCE = 1e-5


def paint(folder, requests, device="cpu", **settings):
    """[B, 3, H, W] on the CPU."""
    parts, loaded = load(folder, torch.float32)
    chosen = PaintingSettings(num_inference_steps=4, guidance=3.0, **settings)
    return Painter(parts.to(device), loaded, chosen).paint(requests).cpu()


def theirs(kind, negatives=None, **settings):
    """[B, 3, H, W] of diffusers' pipeline on the CPU, from the noise of seeds 0, 1, ..."""
    made = make_pipeline(kind)(
        list(PROMPTS),
        negative_prompt=None if negatives is None else list(negatives),
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=[torch.Generator().manual_seed(seed) for seed in range(len(PROMPTS))],
        output_type="np",
        **settings,
    )
    return torch.from_numpy(made.images).permute(0, 3, 1, 2)


@pytest.mark.slow_but("sd2-", "sd2-negative")
@pytest.mark.parametrize("negatives", [None, NEGATIVES], ids=["", "negative"])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_those_of_diffusers(kind, negatives, folders):
    requests = make_requests(PROMPTS, negatives or (), 1, [0])
    made, expected = paint(folders[kind], requests), theirs(kind, negatives)
    assert made.shape == expected.shape == (3, 3, 16, 16)
    assert expected.std() > 0.05
    assert (made - expected).abs().max() <= TOLERANCE


def test_pictures_of_another_size_are_those_of_diffusers(folders):
    requests = make_requests(PROMPTS, (), 1, [0])
    made = paint(folders["sdxl"], requests, height=24, width=32)
    expected = theirs("sdxl", height=24, width=32)
    assert made.shape == (3, 3, 24, 32)
    assert (made - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("engine", ["none", pytest.param("compile", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_the_hpu_are_those_of_the_cpu(kind, engine, folders):
    requests = make_requests(PROMPTS, (), 1, [0])
    made = paint(folders[kind], requests, "hpu", engine=engine)
    assert (made - theirs(kind)).abs().max() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_lazy_mode_replays_graphs_to_the_same_pictures(kind, folders, tmp_path):
    fork_python(
        f"""
        import torch
        from recipes.text_to_image.requests import make_requests
        from tests.recipes.text_to_image.test_painting import PROMPTS, paint

        made = paint({folders[kind]!r}, make_requests(PROMPTS, (), 1, [0]), "hpu")
        torch.save(made, {str(tmp_path / "made.pt")!r})
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )
    made = torch.load(tmp_path / "made.pt")
    assert (made - theirs(kind)).abs().max() <= TOLERANCE


@pytest.mark.slow
def test_a_batch_paints_what_each_request_alone_does(folders):
    requests = make_requests(PROMPTS, NEGATIVES, 1, [5, 1, 5])
    together = paint(folders["sdxl"], requests)
    for row, request in enumerate(requests):
        alone = paint(folders["sdxl"], [request])
        assert (together[row] - alone[0]).abs().max() <= TOLERANCE


def test_schedulers_compute_in_float32_under_bfloat16_weights(folders):
    requests = make_requests(PROMPTS, (), 1, [0])
    exact = paint(folders["sd2"], requests)
    parts, loaded = load(folders["sd2"], torch.bfloat16)
    painter = Painter(parts, loaded, PaintingSettings(num_inference_steps=4, guidance=3.0))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # as precision=bf16-true does
    try:
        made = painter.paint(requests)
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(before)
    assert made.dtype == torch.float32
    assert (made - exact).abs().mean() < 0.02


def test_what_the_text_encoder_does_not_see_is_said(folders):
    parts, loaded = load(folders["sd1"], torch.float32)
    painter = Painter(parts, loaded, PaintingSettings())
    long = "a red seven a red seven and zero blue"
    with pytest.warns(UserWarning, match="reads 8 at most: it ignores 'and zero blue'"):
        painter.check_lengths(make_requests([long], (), 1, [0]))
    painter.check_lengths(make_requests(PROMPTS, (), 1, [0]))  # warnings are errors here


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheduler": "eulr"}, "Did you mean 'euler'"),
        ({"height": 17}, r"model.height=17 is no multiple of 2, .* Set 16 or 18"),
        ({"width": 1}, "model.width=1 is no multiple of 2, .* Set 2 or 4"),
        ({"engine": "graph"}, "engine='graph' is for the HPU"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said, folders):
    parts, loaded = load(folders["sd1"], torch.float32)
    with pytest.raises(UserError, match=said):
        Painter(parts, loaded, PaintingSettings(**settings)).paint(
            make_requests(PROMPTS, (), 1, [0])
        )


def test_pictures_are_numbers_from_0_to_1(folders):
    made = paint(folders["sd1"], make_requests(PROMPTS, (), 1, [0])).numpy()
    assert made.dtype == np.float32
    assert made.min() >= 0
    assert made.max() <= 1
