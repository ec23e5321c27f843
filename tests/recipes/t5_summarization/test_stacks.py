import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi._core import vendor
from lightning_gaudi.attention import fused_attention
from recipes.t5_summarization.stacks import decode, encode, inputs_of, source_places
from tests.recipes.t5_summarization.conftest import tiny_t5

# Large enough for activations to outweigh everything else: 8 rows of 128 source and 32 target
# tokens, 6 + 6 layers 64 wide, 128 tokens in the vocabulary.
ACTIVE = {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 6}


def _batch(num_rows=6, num_source=20, num_target=9, vocab_size=60):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, vocab_size, (num_rows, num_source), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(num_rows):
        mask[row, num_source - row :] = 0
    labels = torch.randint(3, vocab_size, (num_rows, num_target), generator=generator)
    labels[1, 5:] = -100
    return ids * mask, mask, labels


def _logits(model, ids, mask, labels, recompute=False):
    inputs = inputs_of(model, mask, labels)
    encoded = encode(model, ids, inputs.source, recompute)
    target = inputs.target, inputs.source_mask
    return decode(model, inputs.shifted, encoded, *target, recompute)


@pytest.mark.parametrize("version", [{}, {"feed_forward_proj": "gated-gelu"}], ids=["T5", "T5 1.1"])
def test_logits_and_gradients_are_those_of_transformers(version):
    torch.manual_seed(0)
    # In float64: weights of some versions begin so large that float32 rounds more than it tells.
    model = tiny_t5(**version, tie_word_embeddings=not version).eval().double()
    ids, mask, labels = _batch()
    expected = model(input_ids=ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    logits = _logits(model, ids, mask, labels)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-11)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=1e-11)


def test_what_stands_in_the_padding_does_not_matter():
    model = tiny_t5().eval()
    ids, mask, labels = _batch()
    both = [_logits(model, ids + noise * (1 - mask), mask, labels) for noise in (0, 7)]
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=0)


def _step(model, device, recompute, dtype):
    """Loss and gradients with dropout; on an hpu also the peak of memory over what was in use."""
    ids, mask, labels = (part.to(device) for part in _batch(8, 128, 32, 128))
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    if device == "hpu":
        before = vendor.memory_stats()["InUse"]
        vendor.reset_peak_memory_stats()
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        logits = _logits(model, ids, mask, labels, recompute)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    loss.backward()
    peak = vendor.memory_stats()["MaxInUse"] - before if device == "hpu" else 0
    gradients = {name: p.grad.cpu().clone() for name, p in model.named_parameters()}
    return loss.detach().cpu(), gradients, peak


@pytest.mark.slow_but("cpu-fp32")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("device", ["cpu", "hpu"])
def test_checkpointing_gives_the_same_bits_from_a_third_of_the_memory(device, dtype):
    vendor.init()
    torch.manual_seed(0)
    model = tiny_t5(**ACTIVE, dropout_rate=0.2).to(device).train()
    model.tie_weights()
    loss, gradients, peak = _step(model, device, False, dtype)
    again, recomputed, peak_with = _step(model, device, True, dtype)
    torch.testing.assert_close(again, loss, rtol=0, atol=0)
    torch.testing.assert_close(recomputed, gradients, rtol=0, atol=0)
    assert max(gradient.abs().max() for gradient in gradients.values()) > 0
    if device == "hpu":
        # Gradients are in both peaks, so the share of the activations alone is smaller.
        assert peak_with <= 0.35 * peak, f"{peak_with / peak:.1%}"


def test_without_the_random_state_checkpointing_would_differ():
    """What the test above would see if dropout were drawn anew."""
    model = tiny_t5(**ACTIVE, dropout_rate=0.2).train()
    losses = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        ids, mask, _ = _batch(8, 128, 32, 128)
        losses.append(encode(model, ids, source_places(model, mask)).sum())
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_attention_to_the_article_is_fused_where_the_switch_says_so():
    torch.manual_seed(0)
    model = tiny_t5().eval()
    ids, mask, labels = _batch()

    def run(device):
        model.zero_grad()
        logits = _logits(model.to(device), *(t.to(device) for t in (ids, mask, labels)))
        logits.square().mean().backward()
        return logits.detach().cpu(), [p.grad.cpu() for p in model.parameters()]

    expected = run("cpu")
    with fused_attention(), torch.profiler.profile() as profile:
        ours = run("hpu")
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["FusedSDPA"] == len(model.decoder.block)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
