"""A converted model's products are those of its fp8 matrices, and a token is one launch still."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi import vendor
from lightning_gaudi.inference import Fp8Linear, TextGenerator, pad_left, to_fp8
from lightning_gaudi.simulator import statistics
from tests.inference.tiny_models import PAD, build, prompts

NUM_NEW = 8
GAUDI_2_LARGEST = 240.0


def _prompts(device: str) -> tuple[Tensor, Tensor]:
    rows, seen = pad_left(prompts(9)[1:], (16,), PAD)
    return rows.to(device), seen.to(device)


def _run(model: Any) -> Any:
    rows, seen = _prompts(model.device.type)
    return lambda: model(input_ids=rows, attention_mask=seen, use_cache=False).logits


@pytest.mark.parametrize("kind", ["Llama", "Bloom"])
def test_products_are_those_of_fp8_matrices_and_logits_near_those_in_bf16(kind: str) -> None:
    expected = _run(build(kind).bfloat16())().float()
    model = build(kind, "hpu").bfloat16()
    num_bytes = {
        name: layer.weight.nbytes
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }
    names = to_fp8(model, _run(model))
    assert {*num_bytes} - {*names} == {"lm_head"}
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, Fp8Linear)
        assert 2 * layer.weight.nbytes == num_bytes[name]

        def note(_: Any, given: Any, result: Tensor, name: str = name) -> None:
            seen[name] = given[0].float().cpu(), result.float().cpu()

        layer.register_forward_hook(note)
    with torch.no_grad():
        found = _run(model)().float().cpu()
    # These weights are ten times as large as those of a trained model, and make errors larger, too.
    assert (found - expected).norm() < 0.25 * expected.norm()
    for name, (given, result) in seen.items():
        layer = model.get_submodule(name)
        scale = 2.0 ** (GAUDI_2_LARGEST / given.abs().max()).log2().floor()
        assert float(layer.input_scale) == pytest.approx(float(scale), rel=0.51)  # bf16's rounding
        rounded = (given * layer.input_scale.cpu()).clamp(-GAUDI_2_LARGEST, GAUDI_2_LARGEST)
        rounded = rounded.to(torch.float8_e4m3fn).float() * layer.input_unit.cpu()
        weight = layer.weight.cpu().float() * layer.weight_unit.cpu()
        bias = None if layer.bias is None else layer.bias.cpu().float()
        product = nn.functional.linear(rounded, weight, bias)
        torch.testing.assert_close(result, product, rtol=0.01, atol=0.01)


def test_a_token_is_as_many_launches_as_in_bf16_and_the_next_one_is_the_same() -> None:
    with torch.inference_mode():  # as `predict` of Lightning is run
        texts, launches = [], []
        for is_fp8 in (False, True):
            model = build("Llama", "hpu").bfloat16()
            if is_fp8:
                to_fp8(model, _run(model))
            generator = TextGenerator(model, "compile", (16,))
            generator(*_prompts("hpu"), NUM_NEW)
            before = statistics.launches()
            texts.append(generator(*_prompts("hpu"), NUM_NEW).cpu())
            launches.append(statistics.launches() - before)
    assert launches[0] == launches[1]
    # After another token these weights, which nobody has trained, go on with others altogether.
    assert (texts[0] == texts[1])[:, 0].float().mean() > 0.8


def test_a_larger_input_is_cut_off() -> None:
    layer = nn.Linear(4, 4, bias=False, device="hpu")
    model = nn.Sequential(layer)
    to_fp8(model, lambda: model(torch.ones(1, 4, device="hpu")))
    found = model(torch.full((2, 4), 1e4, device="hpu"))
    torch.testing.assert_close(found, model(torch.full((2, 4), 1e5, device="hpu")))
    assert found.abs().max() < 1e3


@pytest.mark.parametrize(
    ("skip", "calibrates", "message"),
    [
        (["up"], True, r"skip has 'up', but no linear layer has that name"),
        (["0", "1"], True, r"fp8 is for linear layers, and Sequential has none .* '?0"),
        ([], False, r"`calibrate` has not run 0, 1, so their scales are not known"),
    ],
)
def test_what_cannot_be_is_named(skip: list[str], calibrates: bool, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("hpu")
    with pytest.raises(ValueError, match=message):
        to_fp8(model, lambda: calibrates and model(torch.ones(1, 4, device="hpu")), skip)


def test_a_card_without_fp8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "generation", lambda: None)
    with pytest.raises(ValueError, match=re.escape("fp8 needs a Gaudi 2 or later, and there is")):
        to_fp8(nn.Linear(2, 2), lambda: None)
