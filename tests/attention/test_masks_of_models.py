"""Models of transformers under each kind of mask: logits and gradients of eager attention.

B batch, T tokens, V vocabulary.
"""

import pytest
import torch

from lightning_gaudi.attention import NAME
from lightning_gaudi.data import block_diagonal_mask
from tests.attention.dropouts import record, repeat
from tests.attention.reference import CLOSE
from tests.attention.tiny_models import TOKENS as T, VOCABULARY as V, build, is_by_name

KINDS = [kind for kind in ("Bert", "T5", "Llama", "Bloom") if is_by_name(kind)]
DROPOUTS = {
    "Bert": "attention_probs_dropout_prob",
    "Llama": "attention_dropout",
    "Bloom": "attention_dropout",
}
SEQUENCES = torch.tensor([[1, 1, 2, 2, 2, 0, 0], [1, 2, 2, 3, 3, 3, 3]])
NUM_LAYERS = {"T5": 6}
each_mask = pytest.mark.parametrize("mask", ["padding", "packing", "causal"])

GATHERS = "ignore:.*gather-of-int64-wrong"
"""BERT gathers its token types where it is given none."""


def _inputs(kind, mask):
    ids = torch.randint(3, V, (2, T), generator=torch.Generator().manual_seed(1))
    causal = torch.full((2, 1, T, T), torch.finfo(torch.bfloat16).min).triu(1)
    packed = block_diagonal_mask(SEQUENCES)
    if kind in ("Llama", "Bloom"):
        packed, causal = torch.minimum(packed, causal), None
    text = torch.ones(2, T, dtype=torch.long)
    text[1, -2:] = 0
    inputs = {
        "input_ids": ids,
        "attention_mask": {"padding": text, "packing": packed, "causal": causal}[mask],
    }
    if kind == "T5":
        inputs["decoder_input_ids"] = ids.flip(1)
        if mask == "packing":
            inputs["decoder_attention_mask"] = torch.minimum(packed, causal)
    return inputs


def _build(kind, attention, device, dropout=0.0):
    """T5's learnt biases are frozen, with which the kernel takes them."""
    settings = {DROPOUTS[kind]: dropout} if kind in DROPOUTS else {}
    model = build(kind, attention, device, **settings).train()
    for module in model.modules():
        if type(module).__name__ == "T5Attention":
            module.dropout = dropout
            if module.has_relative_attention_bias:
                module.relative_attention_bias.requires_grad_(False)
        if type(module).__name__ == "BloomModel":
            _take_masks_of_pairs(module)
    return model


def _take_masks_of_pairs(model):
    """Bloom's own ALiBi asks for a mask of padding: who packs gives it another."""
    theirs = model.build_alibi_tensor

    def build_alibi_tensor(mask, num_heads, dtype):
        mask = mask if mask.dim() == 2 else torch.ones(mask.shape[::2], device=mask.device)
        return theirs(mask, num_heads, dtype)

    model.build_alibi_tensor = build_alibi_tensor


def _train(model, inputs):
    """Logits and gradients, of what is no padding."""
    on_device = {name: t if t is None else t.to(model.device) for name, t in inputs.items()}
    out = model(**on_device)
    mask = inputs["attention_mask"]
    is_text = torch.ones(2, T, 1) if mask is None or mask.dim() > 2 else mask[..., None]
    upstream = torch.randn(2, T, V, generator=torch.Generator().manual_seed(2)) * is_text
    out.logits.backward(upstream.to(model.device))
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.requires_grad}
    return out.logits.detach().cpu() * is_text, gradients


@pytest.mark.slow_but("Bert-packing", "Bloom-packing")
@pytest.mark.filterwarnings(GATHERS)
@each_mask
@pytest.mark.parametrize("kind", KINDS)
def test_masks(kind, mask):
    inputs = _inputs(kind, mask)
    expected = _train(_build(kind, "eager", "cpu"), inputs)
    with torch.profiler.profile() as profile:
        found = _train(_build(kind, NAME, "hpu"), inputs)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["FusedSDPA"] == NUM_LAYERS.get(kind, 2)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings(GATHERS)
@each_mask
@pytest.mark.parametrize("kind", KINDS)
def test_masks_with_dropout(kind, mask, monkeypatch):
    inputs = _inputs(kind, mask)
    with monkeypatch.context() as patch:
        kept = record(patch)
        found = _train(_build(kind, NAME, "hpu", dropout=0.4), inputs)
    assert len(kept) == NUM_LAYERS.get(kind, 2)
    without = _train(_build(kind, "eager", "cpu"), inputs)
    assert not torch.allclose(found[0], without[0], atol=1e-3)
    with monkeypatch.context() as patch:
        repeat(patch, kept)
        expected = _train(_build(kind, "eager", "cpu", dropout=0.4), inputs)
    assert kept == []
    torch.testing.assert_close(found, expected, **CLOSE)


def test_packing_by_positions_alone():
    """What trl passes for packed texts: the mask follows from where positions begin again."""
    inputs = _inputs("Llama", "causal")
    inputs["position_ids"] = torch.tensor([[0, 1, 0, 1, 2, 0, 1], [0, 0, 1, 0, 1, 2, 3]])
    expected = _train(_build("Llama", "eager", "cpu"), inputs)
    torch.testing.assert_close(_train(_build("Llama", NAME, "hpu"), inputs), expected, **CLOSE)
