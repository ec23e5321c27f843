"""Models of transformers with fused attention: outputs and gradients are the CPU's."""

import pytest
import torch
from torch import nn

from lightning_gaudi.attention import NAME, fused_attention
from lightning_gaudi.attention.models import attend
from tests.attention.reference import qkv
from tests.attention.tiny_models import MODELS, TOKENS, VOCABULARY, build, is_by_name

# T5's position biases are learnt.
LEARNT = "ignore:Attention on the HPU is composed of operators here, not fused. the mask wants"

GATHERS = "ignore:.*gather-of-int64-wrong"
"""BERT gathers its token types where it is given none."""


def _train(model, is_padded):
    """Logits of the text, and the gradients of all weights."""
    generator, device = torch.Generator().manual_seed(0), model.device
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    inputs = {"attention_mask": mask.to(device)} if is_padded else {}
    if model.config.is_encoder_decoder:
        inputs["labels"] = ids.to(device)
    logits = model.train()(input_ids=ids.to(device), **inputs).logits
    upstream = torch.randn(logits.shape, generator=generator)
    if is_padded and not model.config.is_encoder_decoder:
        upstream *= mask[..., None]
    logits.backward(upstream.to(device))
    return logits.detach().cpu() * (upstream != 0), {
        name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.slow_but(
    "Bert-False", "Bloom-True", "Bloom-False", "Qwen2-True", "Qwen2-False", "Llama-True"
)
@pytest.mark.filterwarnings(GATHERS)
@pytest.mark.filterwarnings(LEARNT)
@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in MODELS if is_by_name(kind)])
def test_a_model_trains_as_with_operators_on_the_cpu(kind, is_padded):
    expected = _train(build(kind, "eager"), is_padded)
    for device in ("hpu", "cpu"):
        ours = _train(build(kind, NAME, device), is_padded)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow_but("Llama")
@pytest.mark.filterwarnings(LEARNT)
@pytest.mark.parametrize("kind", [k for k in ("Bert", "T5", "Llama") if k != "T5" or is_by_name(k)])
def test_sdpa_is_fused_where_the_switch_says_so(kind):
    expected = _train(build(kind, "eager"), True)
    with fused_attention(), torch.profiler.profile() as profile:
        ours = _train(build(kind, "sdpa", "hpu"), True)
    assert "FusedSDPA" in {event.key for event in profile.key_averages()}
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings(GATHERS)
@pytest.mark.parametrize("kind", [kind for kind in MODELS if is_by_name(kind)])
def test_in_inference_every_layer_is_fused(kind):
    with torch.no_grad(), torch.profiler.profile() as profile:
        logits, layers = _forward(build(kind, NAME, "hpu").eval())
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["FusedSDPA"] == layers
    torch.testing.assert_close(
        logits, _forward(build(kind, "eager").eval())[0], rtol=1e-5, atol=1e-5
    )


def _forward(model):
    ids = torch.arange(3, 3 + TOKENS).repeat(2, 1).to(model.device)
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        logits = model(input_ids=ids, **decoder).logits.cpu()
    return logits, 6 if decoder else 2  # encoder, decoder, and from one to the other


@pytest.mark.filterwarnings(GATHERS)
@pytest.mark.parametrize("kind", [kind for kind in ("Bert", "Bloom") if is_by_name(kind)])
def test_a_mask_of_padding_does_not_wait_for_the_device(kind):
    model = build(kind, NAME, "hpu")
    ids = torch.ones(2, TOKENS, dtype=torch.long, device="hpu")
    with torch.hpu.metric_localcontext("host_sync") as metric:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert dict(metric.stats())["TotalNumber"] == 0


@pytest.mark.parametrize("kind", [kind for kind in ("Llama", "T5", "Bloom") if is_by_name(kind)])
def test_generation_writes_what_the_cpu_writes(kind):
    ids = torch.arange(3, 3 + 4).repeat(2, 1)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    texts = []
    for attention, device in (("eager", "cpu"), (NAME, "hpu")):
        model = build(kind, attention, device).eval()
        model.generation_config.pad_token_id = 0
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        texts.append(model.generate(**inputs, max_new_tokens=5, do_sample=False).cpu())
    assert torch.equal(*texts)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if not is_by_name(kind)])
def test_a_model_without_named_attention_refuses_the_name(kind):
    message = f"'{NAME}' was asked for, but {kind}.* of transformers .* would compute it unfused"
    with pytest.raises(ValueError, match=message):
        build(kind, NAME)
    model = build(kind, "eager")
    if hasattr(model, "set_attn_implementation"):
        with pytest.raises(ValueError, match=message):
            model.set_attn_implementation(NAME)


def test_what_a_layer_wants_and_the_kernel_lacks_is_refused():
    tensors = [t.detach() for t in qkv(device="hpu")]
    for name in ("softcap", "s_aux", "output_attentions"):
        with pytest.raises(ValueError, match=rf"compute Linear, which .*\({name} was passed\)"):
            attend(nn.Linear(1, 1), *tensors, None, **{name: 1.0})
