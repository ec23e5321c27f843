"""Tokens that are drawn: as often as is probable, from what is kept, the same in any batch."""

import pytest
import torch

from lightning_gaudi.inference import Sampling, TextGenerator, pad_left
from lightning_gaudi.inference.sampling import draw_noise, kept_probabilities, sample
from tests.inference.tiny_models import PAD, build, prompts

ONE = torch.ones(1)


def logits_of(num_rows=1, size=16):
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(3)) * 2


def draw(logits, count, temperature=1.0, top_p=None, top_k=None, device="cpu"):
    """How often each token is drawn, in `count` draws from the logits of one row."""
    noise = draw_noise([0], count).T
    limit = None if top_p is None else torch.tensor([top_p], device=device)
    rows = logits.expand(count, -1).to(device)
    heat = torch.tensor([temperature], device=device)
    tokens = sample(rows, noise.to(device), heat, limit, top_k)
    return torch.bincount(tokens.cpu(), minlength=logits.shape[-1])


@pytest.mark.parametrize("device", ["cpu", "hpu"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.8}])
def test_tokens_are_drawn_as_often_as_is_probable(settings, device):
    logits, count = logits_of(), 20_000
    drawn = draw(logits, count, device=device, **settings)
    limit = torch.tensor([settings["top_p"]]) if "top_p" in settings else None
    heat = torch.tensor([settings.get("temperature", 1.0)])
    expected = kept_probabilities(logits, heat, limit, settings.get("top_k"))[0]
    expected = expected / expected.sum() * count
    is_kept = expected > 0
    assert drawn[~is_kept].sum() == 0
    chi_square = ((drawn - expected)[is_kept] ** 2 / expected[is_kept]).sum()
    # The mean is one less than there are tokens, the variance twice that.
    freedom = int(is_kept.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("top_k", [None, 1, 3, 16, 40])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_what_is_kept_is_what_transformers_keeps(temperature, top_k, top_p):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = logits_of(num_rows=8)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    limit = None if top_p is None else torch.tensor([top_p])
    kept = kept_probabilities(logits, torch.tensor([temperature]), limit, top_k)
    torch.testing.assert_close(kept / kept.sum(-1, keepdim=True), expected.softmax(-1))


def test_tokens_that_are_equally_likely_are_kept_together():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert kept_probabilities(logits, ONE, None, 2).count_nonzero() == 3
    assert kept_probabilities(logits, ONE, torch.tensor([0.7]), None).count_nonzero() == 3


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-24])
def test_the_ends_of_the_noise_are_tokens_that_are_kept(noise):
    logits = torch.full((1, 5), -torch.inf)
    logits[0, 1], logits[0, 3] = 0.0, 0.0
    token = sample(logits, torch.tensor([[noise]]), ONE, None, None)
    assert token.item() == (1 if noise == 0.0 else 3)


def test_noise_of_a_row_is_its_seeds_alone():
    alone, longer = draw_noise([7], 4), draw_noise([3, 7], 9)
    assert torch.equal(alone[0], longer[1, :4])
    assert not torch.equal(longer[0], longer[1])


SAMPLING = Sampling(temperature=0.9, top_k=40, top_p=0.95)


@pytest.mark.parametrize("device", ["cpu", "hpu"])
def test_a_text_is_its_prompts_and_its_seeds_whatever_the_batch(device):
    texts = prompts(9)[1:]
    generator = TextGenerator(build("Llama", device), "none", (8, 16), eos_token_id=())
    batch = pad_left(texts, (16,), PAD)
    together = generator(*batch, 10, sampling=SAMPLING, seeds=range(8)).cpu()
    for row, text in enumerate(texts):
        alone = generator(*pad_left([text], (8, 16), PAD), 10, sampling=SAMPLING, seeds=row)
        assert torch.equal(alone.cpu()[0], together[row])
    assert len(together.unique()) > 20
    again = generator(*batch, 10, sampling=SAMPLING, seeds=[*range(7), 99]).cpu()
    assert torch.equal(again[:7], together[:7])
    assert not torch.equal(again[7], together[7])


def test_one_seed_is_that_of_all_rows():
    generator = TextGenerator(build(), buckets=(8,))
    batch = pad_left([[5, 6, 7]] * 3, (8,), PAD)
    tokens = generator(*batch, 6, sampling=SAMPLING, seeds=4)
    assert torch.equal(tokens[0], tokens[1])
    assert torch.equal(tokens, generator(*batch, 6, sampling=SAMPLING, seeds=[4, 4, 4]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0 must be more than 0. For the likeliest token"),
        ({"temperature": -1.0}, "temperature=-1.0 must be more than 0"),
        ({"temperature": float("nan")}, "temperature=nan must be more than 0"),
        ({"top_k": 0}, "top_k=0 must be a whole number of at least 1"),
        ({"top_k": 2.5}, "top_k=2.5 must be a whole number"),
        ({"top_p": 0.0}, "top_p=0.0 must be more than 0 and at most 1"),
        ({"top_p": 1.5}, "top_p=1.5 must be more than 0 and at most 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
