"""Tiny models of transformers, all of whose dropouts are off."""

import torch
import transformers

VOCABULARY, TOKENS = 32, 7
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}
GROUPED = {**SMALL, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "Bert": {
        **SMALL,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "T5": {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    },
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Bloom": {**SMALL, "n_head": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "Mpt": {"vocab_size": VOCABULARY, "d_model": 16, "n_layers": 2, "n_heads": 2},
}
HEADS = {"Bert": "ForMaskedLM", "T5": "ForConditionalGeneration"}


def build(kind, attention, device="cpu", **settings):
    """The same weights whatever the attention."""
    settings = {**MODELS[kind], **settings, "attn_implementation": attention}
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    return getattr(transformers, kind + HEADS.get(kind, "ForCausalLM"))(config).to(device)


def is_by_name(kind):
    """Whether it looks its attention up, in this version of transformers."""
    module = getattr(transformers.models, kind.lower())
    return hasattr(getattr(module, f"modeling_{kind.lower()}"), "ALL_ATTENTION_FUNCTIONS")
