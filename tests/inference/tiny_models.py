"""Tiny decoder-only models, and prompts for them."""

import random

import torch
import transformers

VOCABULARY, PAD, END = 96, 3, 2
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 1}
TOKENS["tie_word_embeddings"] = False
GROUPED = {
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
KINDS = {
    "Bloom": ("BloomForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 4}),
    "Bloom, 6 heads": ("BloomForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 6}),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "GPT-2": ("GPT2LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}
FUSED = {"attn_implementation": "gaudi_fused_sdpa"}
FUSED_KINDS = {
    f"{kind}, fused": (KINDS[kind][0], {**KINDS[kind][1], **FUSED}) for kind in ("Bloom", "Llama")
}


def build(kind="Llama", device="cpu", **settings):
    """The same weights each time, of which most are large, or the text soon repeats one token."""
    name, sizes = {**KINDS, **FUSED_KINDS}[kind]
    model_class = getattr(transformers, name)
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**{**TOKENS, **sizes, **settings}))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    torch.nn.init.normal_(model.lm_head.weight, std=0.1)
    return model.eval().to(device)


def prompts(count=64, longest=14):
    """Of mixed length, the first of them as long as the bucket of 16 is wide."""
    drawn = random.Random(0)
    lengths = [16, *(drawn.randint(1, longest) for _ in range(count - 1))]
    return [[drawn.randrange(5, VOCABULARY) for _ in range(length)] for length in lengths]
