"""Captured models of transformers, and a UNet, compute what they do without graphs, to the bit."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

hpu: Any = torch.hpu

pytestmark = pytest.mark.usefixtures("lazy")
VOCABULARY = 64


def _bloom() -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, attn_implementation="eager"
    )
    return transformers.BloomForCausalLM(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _t5(**options: Any) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        attn_implementation="eager", **options,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


class UNet(nn.Module):
    """A noise predictor of the usual operators: time embedding, group norm, attention, skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)
        self.register_buffer("frequencies", torch.exp(-torch.arange(width / 2)))

    def forward(self, pictures: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None].float() * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = functional.silu(self.first(pictures) + time[:, :, None, None])
        low = functional.silu(self.norm(self.down(first)))
        tokens = low.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        high = self.up(tokens.transpose(1, 2).reshape(low.shape))
        high = functional.interpolate(high, scale_factor=1.0, mode="nearest")
        return self.last(torch.cat([first, high], 1))


def _ids(num_rows: int, num_tokens: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (num_rows, num_tokens))


def _prompt(num_tokens: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, num_tokens, dtype=torch.long)
    mask[0, : num_tokens // 2] = 0
    return {"input_ids": _ids(2, num_tokens), "attention_mask": mask}


def _pair(num_tokens: int) -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(2, num_tokens), "decoder_input_ids": _ids(2, num_tokens - 2)}


def _pictures(size: int) -> dict[str, torch.Tensor]:
    return {"pictures": torch.randn(2, 3, size, size), "steps": torch.randint(1000, (2,))}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, torch.Tensor]]]] = {
    "bloom": (_bloom, _prompt),
    "llama": (_llama, _prompt),
    "t5": (_t5, _pair),
    "unet": (UNet, _pictures),
}


@pytest.mark.parametrize("disable_tensor_cache", [False, True])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_captured_model_equals_the_model(name: str, disable_tensor_cache: bool) -> None:
    torch.manual_seed(0)
    make_model, make_batch = MODELS[name]
    model = make_model().to("hpu").eval()
    runs: list[int] = []
    reference = copy.deepcopy(model)
    list(model.children())[-1].register_forward_pre_hook(lambda *_: runs.append(1))
    hpu.wrap_in_hpu_graph(model, disable_tensor_cache=disable_tensor_cache)
    for size in (6, 8, 6, 6, 8):
        batch = {name: tensor.to("hpu") for name, tensor in make_batch(size).items()}
        expected = hpu.graphs.extract_tensors(reference(**batch))
        result = hpu.graphs.extract_tensors(model(**batch))
        assert len(result) == len(expected) > 0
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
    assert len(runs) == 2, "one capture for each size, and no Python at a replay"


@pytest.mark.parametrize("has_padding", [True, False])
@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        *((name, "sdpa") for name in ("bert", "mpnet", "distilbert", "xlm-roberta", "albert")),
        ("bert", "eager"),
        ("bert", "gaudi_fused_sdpa"),
    ],
)
@torch.no_grad()
def test_a_captured_encoder_equals_it_whatever_its_mask_hides(
    model_type: str, attention: str, has_padding: bool
) -> None:
    """As sentence-transformers' `encode` captures one; each mask is asked on the host elsewhere."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    encoder = transformers.AutoModel.from_config(config).eval()
    batch = _prompt(6)
    if not has_padding:
        batch["attention_mask"].fill_(1)
    shown = batch["attention_mask"].bool()
    expected = encoder(**batch).last_hidden_state[shown]
    on_card = {name: tensor.to("hpu") for name, tensor in batch.items()}
    if attention != "sdpa":
        encoder.set_attn_implementation(attention)
    model = hpu.wrap_in_hpu_graph(encoder.to("hpu"))
    for _ in range(2):
        result = model(**on_card).last_hidden_state.cpu()[shown]
        torch.testing.assert_close(result, expected)


@torch.no_grad()
def test_a_decoders_cross_attention_is_captured_with_a_mask_of_padding() -> None:
    torch.manual_seed(0)
    model = _t5().eval()
    batch = _prompt(6) | {"decoder_input_ids": _ids(2, 4)}
    expected = model(**batch).logits
    on_card = {name: tensor.to("hpu") for name, tensor in batch.items()}
    captured = hpu.wrap_in_hpu_graph(model.to("hpu"))
    for _ in range(2):
        torch.testing.assert_close(captured(**on_card).logits.cpu(), expected)


class _Asking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if (x > 0).all() else x


@torch.no_grad()
def test_a_capture_that_failed_is_not_taken_for_one_in_progress() -> None:
    from transformers.utils.import_utils import is_tracing

    x = torch.ones(2, device="hpu")
    with pytest.raises(RuntimeError, match="_local_scalar_dense is not supported during") as error:
        hpu.wrap_in_hpu_graph(_Asking())(x)
    assert "gaudi_fused_sdpa" not in str(error.value)
    assert not is_tracing(x)
    told: list[bool] = []
    hpu.wrap_in_hpu_graph_func(lambda x: (told.append(is_tracing(x)), x + 1))(x)
    assert told == [True]
    assert not is_tracing(x)


@torch.no_grad()
def test_releases_that_ask_masks_while_capturing_have_a_remedy_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", ModuleType("older"))
    with pytest.raises(RuntimeError, match="not with attn_implementation='gaudi_fused_sdpa'"):
        hpu.wrap_in_hpu_graph(_Asking())(torch.ones(2, device="hpu"))


@torch.no_grad()
def test_a_captured_unet_of_diffusers_equals_it() -> None:
    import diffusers  # takes a second

    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    ).to("hpu").eval()  # fmt: skip
    reference = copy.deepcopy(unet)
    hpu.wrap_in_hpu_graph(unet)
    for size in (8, 16, 8):
        batch = _pictures(size)
        pictures, steps = batch["pictures"].to("hpu"), batch["steps"].to("hpu")
        expected = reference(pictures, steps).sample
        assert torch.equal(unet(pictures, steps).sample, expected)
