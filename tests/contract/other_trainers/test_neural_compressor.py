"""Intel Neural Compressor, unmodified: measures a model in bf16, and converts it to fp8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_gaudi import vendor
from lightning_gaudi.inference import TextGenerator

quantization = pytest.importorskip(
    "neural_compressor.torch.quantization",
    reason="needs: pip install --no-deps neural_compressor_pt==3.10 prettytable wcwidth",
)
# It asks for torchao, which its fp8 does not use, and which other libraries would find.
pytestmark = pytest.mark.slow

VOCABULARY, NUM_NEW = 320, 8
LAYERS = {"types": [], "names": []}
OUT = {"types": [], "names": ["lm_head"]}
TOKENS = torch.randint(4, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(1))


def _model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads, **ids))
    return model.eval().bfloat16()


@contextmanager
def _inputs(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """What linear layers are given and give, by name."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Any:
        return lambda _, given, result: found.__setitem__(name, (given[0].cpu(), result.cpu()))

    hooks = [
        layer.register_forward_hook(note(name))
        for name, layer in model.named_modules()
        if type(layer).__name__ in ("Linear", "PatchedLinear") and name != "lm_head"
    ]
    yield found
    for hook in hooks:
        hook.remove()


def _logits(model: nn.Module, device: str) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(TOKENS.to(device), use_cache=False).logits
    return logits.float().cpu()


def test_a_model_is_measured_converted_and_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maxima are the CPU's; a product is that of its fp8 matrices; texts are near bf16's."""
    monkeypatch.chdir(tmp_path)  # its logs
    settings = {"dump_stats_path": str(tmp_path / "m"), "allowlist": LAYERS, "blocklist": OUT}
    with _inputs(on_cpu := _model()) as seen:
        expected = _logits(on_cpu, "cpu")

    measuring = quantization.FP8Config(mode="MEASURE", observer="maxabs", **settings)
    measured = quantization.prepare(_model().to("hpu"), measuring)
    torch.testing.assert_close(_logits(measured, "hpu"), expected, rtol=0, atol=0.02)
    quantization.finalize_calibration(measured)
    told = json.loads((tmp_path / "m_hooks_maxabs.json").read_text())["Nodes"]
    for name, (given, _) in seen.items():
        assert told[name]["inputs"] == [[[pytest.approx(float(given.abs().max()), rel=0.02)]]]

    converting = quantization.FP8Config(mode="QUANTIZE", scale_method="maxabs_hw", **settings)
    model = quantization.convert(_model().to("hpu"), converting)
    with _inputs(model) as seen:
        found = _logits(model, "hpu")
    assert (found - expected).norm() < 0.1 * expected.norm()
    assert len(seen) == 14
    for name, (given, result) in seen.items():
        layer = model.get_submodule(name)
        assert layer.weight.dtype == torch.float8_e4m3fn
        rounded = (given.float() * layer.quant_input.scale_inv).clamp(-240, 240)
        product = rounded.to(torch.float8_e4m3fn).float() @ layer.weight.cpu().float()
        product *= layer.scale_input * layer.scale_weight
        torch.testing.assert_close(result.float(), product, rtol=0.01, atol=1e-3)

    device = torch.device("hpu")
    prompts = (TOKENS.to(device), torch.ones_like(TOKENS, device=device))
    engine: Any = "graph" if vendor.is_lazy() else "compile"
    texts = [
        TextGenerator(each, engine, [TOKENS.shape[1]])(*prompts, NUM_NEW).cpu()
        for each in (_model().to(device), model)
    ]
    assert (texts[0] == texts[1]).float().mean() > 0.8
