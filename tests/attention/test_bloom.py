"""Bloom with fused attention: its ALiBi goes to the kernel, and its numbers are the CPU's."""

import inspect

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import BloomConfig, BloomForCausalLM, DynamicCache, StaticCache

from lightning_gaudi.attention import NAME

B, T, VOCABULARY, LAYERS = 2, 7, 32, 2
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PADDINGS = {
    "left": [[1] * T, [0, 0, *[1] * (T - 2)]],
    "right": [[1] * T, [*[1] * (T - 2), 0, 0]],
    "none": [[1] * T] * B,
    "no mask": None,
}
paddings = pytest.mark.parametrize("padding", PADDINGS)


def _model(attention=NAME, device="hpu", **settings):
    """Three heads: their slopes are those of two, and one in between."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": LAYERS, "n_head": 3}
    dropouts = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    torch.manual_seed(0)
    model = BloomForCausalLM(
        BloomConfig(**(sizes | dropouts | settings), attn_implementation=attention)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(device)


def _inputs(padding, device):
    ids = torch.randint(3, VOCABULARY, (B, T), generator=torch.Generator().manual_seed(1))
    mask = None if PADDINGS[padding] is None else torch.tensor(PADDINGS[padding], device=device)
    return {"input_ids": ids.to(device), "attention_mask": mask}


def _train(model, padding, forward=None):
    """Logits of the text, and all gradients."""
    inputs = _inputs(padding, model.device)
    logits = (forward or model.train())(**inputs).logits
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    if PADDINGS[padding] is not None:
        upstream *= torch.tensor(PADDINGS[padding])[..., None]
    logits.backward(upstream.to(model.device))
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    return logits.detach().cpu() * (upstream != 0), gradients


@paddings
def test_training_has_the_numbers_of_its_own_attention(padding):
    expected = _train(_model("eager", "cpu"), padding)
    for device in ("hpu", "cpu"):
        torch.testing.assert_close(_train(_model(device=device), padding), expected, **CLOSE)


def _events(model, **inputs):
    with torch.profiler.profile() as profile:
        model(**inputs)
    return {event.key: event.count for event in profile.key_averages()}


@paddings
def test_every_layer_is_fused_with_one_mask_for_all(padding):
    few, many = (_model(n_layer=n).eval() for n in (1, 3))
    inputs = _inputs(padding, "hpu")
    with torch.no_grad():
        few, many = _events(few, **inputs), _events(many, **inputs)
    assert (few["FusedSDPA"], many["FusedSDPA"]) == (1, 3)
    assert few["aten::clamp"] == many["aten::clamp"] == 1
    assert "aten::baddbmm" not in many


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_writes_what_the_cpu_writes(cache):
    texts = []
    for attention, device in (("eager", "cpu"), (NAME, "hpu"), (NAME, "cpu")):
        model = _model(attention, device).eval()
        model.generation_config.pad_token_id = 0
        settings = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
        texts.append(model.generate(**_inputs("left", device), **settings).cpu())
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


WITHOUT_MASK = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="a static cache without a mask needs transformers 5.23: 5.20 refuses it on any device",
)


@pytest.mark.parametrize("kind", ["dynamic", pytest.param("static", marks=WITHOUT_MASK)])
@pytest.mark.parametrize("chunks", [(4, 3), (5, 1, 1)])
def test_a_text_in_parts_is_as_the_whole_text(kind, chunks):
    """With a cache, and no mask: the second part sees the first, and no empty places."""
    expected = _model("eager", "cpu").eval()(**_inputs("no mask", "cpu")).logits
    for device in ("hpu", "cpu"):
        model = _model(device=device).eval()
        cache = DynamicCache()
        if kind == "static":
            cache = StaticCache(config=model.config, max_cache_len=T + 2)
        ids = _inputs("no mask", device)["input_ids"]
        takes = inspect.signature(model.forward).parameters  # "cache" from transformers 5.24 on
        given = {"cache" if "cache" in takes else "past_key_values": cache, "use_cache": True}
        with torch.no_grad():
            parts = [model(part, **given).logits for part in ids.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1).cpu(), expected, **CLOSE)


@pytest.mark.parametrize("device", ["hpu", "cpu"])
def test_dropout_drops_weights_in_training_alone(device):
    model, inputs = _model(device=device, attention_dropout=0.5), _inputs("left", device)
    logits = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        logits.append(model.train()(**inputs).logits.detach().cpu())
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])
    expected = _model("eager", "cpu").eval()(**_inputs("left", "cpu")).logits
    found = model.eval()(**inputs).logits.cpu()
    torch.testing.assert_close(found[0], expected[0], **CLOSE)


def test_recomputed_layers_have_the_same_gradients():
    expected = _train(_model("eager", "cpu"), "left")
    model = _model()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    torch.testing.assert_close(_train(model, "left"), expected, **CLOSE)


def test_autocast_stays_near_fp32():
    expected = _model("eager", "cpu")(**_inputs("right", "cpu")).logits[0]
    with torch.autocast("hpu", dtype=torch.bfloat16):
        found = _model()(**_inputs("right", "hpu")).logits[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float().cpu(), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own deprecations
@pytest.mark.parametrize("padding", ["left", "no mask"])
def test_one_graph_of_torch_compile(padding):
    expected = _train(_model("eager", "cpu"), padding)
    torch.compiler.reset()
    model = _model().train()
    compiled = torch.compile(model, backend="hpu_backend", fullgraph=True)
    found = _train(model, padding, lambda **inputs: compiled(**inputs, use_cache=False))
    torch.compiler.reset()
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_model_changes_its_attention():
    model, inputs = _model("eager").eval(), _inputs("left", "hpu")
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(NAME)
    model.config._attn_implementation = NAME
    assert _events(model, **inputs)["FusedSDPA"] == LAYERS
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    model.config._attn_implementation = "eager"
    assert "FusedSDPA" not in _events(model, **inputs)


def test_what_the_kernel_lacks_is_refused():
    inputs = _inputs("none", "cpu")
    model = _model(device="cpu")
    with pytest.raises(ValueError, match=r"BloomAttention, which returns its weights"):
        model(**inputs, output_attentions=True)
    model = _model(device="cpu", slow_but_exact=True, pretraining_tp=2)
    with pytest.raises(ValueError, match="slow_but_exact=True and pretraining_tp=2"):
        model(**inputs)
