"""The models of the published figures, by their configurations in transformers."""

from __future__ import annotations

from typing import Any

_Settings = tuple[str, dict[str, Any]]


def _encoder(kind: str, size: str, vocab: int, **settings: Any) -> _Settings:
    hidden, layers, heads = {"base": (768, 12, 12), "large": (1024, 24, 16)}[size]
    found = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocab,
    }
    return kind, found | settings


def _llama(
    kind: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    inner: int,
    vocab: int,
    **settings: Any,
) -> _Settings:
    found = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        # Some classes name tokens beyond a small vocabulary by default.
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    return kind, found | settings


def _gemma3(hidden: int, layers: int, heads: int, kv_heads: int, inner: int, dim: int) -> _Settings:
    return _llama(
        "Gemma3Text", hidden, layers, heads, kv_heads, inner, 262208, head_dim=dim,
        tie_word_embeddings=True,
    )  # fmt: skip


_FALCON: dict[str, Any] = {"vocab_size": 65024, "alibi": False, "bias": False}
_ALBERT: dict[str, Any] = {"vocab_size": 30000, "embedding_size": 128}
_LLAMA_7B = _llama("Llama", 4096, 32, 32, 32, 11008, 32000)
_LLAMA_70B = _llama("Llama", 8192, 80, 64, 8, 28672, 32000)
_LLAMA_3_8B = _llama("Llama", 4096, 32, 32, 8, 14336, 128256, max_position_embeddings=8192)
_CHATGLM = _llama("Phi3", 4096, 28, 32, 2, 13696, 65024)
"""Its own code, in which query, key and value are one product, and gate and up another, as here."""

_ROBERTA: dict[str, Any] = {"max_position_embeddings": 514}

MODELS: dict[str, _Settings] = {
    "bert-large-wwm": _encoder("Bert", "large", 30522),
    "roberta-large": _encoder("Roberta", "large", 50265, **_ROBERTA),
    "roberta-base": _encoder("Roberta", "base", 50265, **_ROBERTA),
    "bert-base": _encoder("Bert", "base", 30522),
    "bert-base 32k": _encoder("Bert", "base", 32000),
    "distilbert": (
        "DistilBert",
        {"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
    ),
    "albert-large": (
        "Albert",
        _ALBERT
        | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"intermediate_size": 4096},
    ),
    "albert-xxlarge": (
        "Albert",
        _ALBERT
        | {"hidden_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 64}
        | {"intermediate_size": 16384},
    ),
    "gpt2": ("GPT2", {"n_embd": 768, "n_layer": 12, "n_head": 12}),
    "gpt2-xl": ("GPT2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bloom-7b1": (
        "Bloom",
        {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
    ),
    "bloom-176b": (
        "Bloom",
        {"hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880},
    ),
    "chatglm3-6b": _CHATGLM,
    "codellama-13b": _llama("Llama", 5120, 40, 40, 40, 13824, 32016),
    "gpt-neox-20b": (
        "GPTNeoX",
        {"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64}
        | {"intermediate_size": 24576, "vocab_size": 50432},
    ),
    "gemma-2b": _llama(
        "Gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256, tie_word_embeddings=True
    ),
    "llamaguard-7b": _LLAMA_7B,
    "llama-7b": _LLAMA_7B,
    "llama-2-7b": _LLAMA_7B,
    "llama-2-13b": _llama("Llama", 5120, 40, 40, 40, 13824, 32000),
    "llama-2-70b": _LLAMA_70B,
    "llama-3.1-8b": _LLAMA_3_8B,
    "llama-3.1-70b": _llama("Llama", 8192, 80, 64, 8, 28672, 128256),
    "llama-3.2-1b": _llama(
        "Llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True
    ),
    "mistral-7b": _llama("Mistral", 4096, 32, 32, 8, 14336, 32000),
    "mixtral-8x7b": _llama(
        "Mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2
    ),
    "qwen2-7b": _llama("Qwen2", 3584, 28, 28, 4, 18944, 152064),
    "qwen2-72b": _llama("Qwen2", 8192, 80, 64, 8, 29568, 152064),
    "qwen3-8b": _llama("Qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128),
    "falcon-40b": (
        "Falcon",
        _FALCON
        | {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128}
        | {"num_kv_heads": 8, "new_decoder_architecture": True},
    ),
    "t5-small": ("T5", {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64}),
    "t5-3b": (
        "T5",
        {"d_model": 1024, "d_ff": 16384, "num_layers": 24, "num_heads": 32, "d_kv": 128},
    ),
    "flan-t5-xxl": (
        "T5",
        {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "d_kv": 64}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "vit-base": ("ViT", {"num_labels": 10}),
    "swin-base": (
        "Swin",
        {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]}
        | {"num_labels": 10},
    ),
}
"""By the name in training.csv: the start of the name of transformers' class, and its settings.

Source: the configurations that the models' authors publish with the weights.
"""

DECODERS: dict[str, _Settings] = {
    "bigscience/bloomz-7b1": MODELS["bloom-7b1"],
    "bigscience/bloomz": MODELS["bloom-176b"],
    "gpt2-xl": MODELS["gpt2-xl"],
    "EleutherAI/gpt-neox-20b": MODELS["gpt-neox-20b"],
    "EleutherAI/gpt-j-6b": (
        "GPTJ",
        {"n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64, "vocab_size": 50400},
    ),
    "EleutherAI/gpt-neo-2.7B": (
        "GPTNeo",
        {"hidden_size": 2560, "num_layers": 32, "num_heads": 20}
        | {"attention_types": [[["global", "local"], 16]]},
    ),
    "Salesforce/codegen2-1B": (
        "CodeGen",
        {"n_embd": 2048, "n_layer": 16, "n_head": 16, "rotary_dim": 64, "vocab_size": 51200},
    ),
    "THUDM/chatglm2-6b": _CHATGLM,
    "THUDM/chatglm3-6b": _CHATGLM,
    "meta-llama/Llama-2-7b-hf": _LLAMA_7B,
    "meta-llama/Meta-Llama-3-8B": _LLAMA_3_8B,
    "meta-llama/Llama-2-70b-hf": _LLAMA_70B,
    "meta-llama/Meta-Llama-3-70B-Instruct": _llama("Llama", 8192, 80, 64, 8, 28672, 128256),
    "codellama/CodeLlama-34b-hf": _llama("Llama", 8192, 48, 64, 8, 22016, 32000),
    "mistralai/Mistral-7B-v0.1": MODELS["mistral-7b"],
    "mistralai/Mistral-7B-Instruct-v0.2": MODELS["mistral-7b"],
    "microsoft/phi-2": _llama("Phi", 2560, 32, 32, 32, 10240, 51200),
    "stabilityai/stablelm-2-12b": _llama("StableLm", 5120, 40, 32, 8, 13824, 100352),
    "bigcode/starcoder2-3b": _llama(
        "Starcoder2", 3072, 30, 24, 2, 12288, 49152, tie_word_embeddings=True
    ),
    "bigcode/starcoder": (
        "GPTBigCode",
        {"n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576, "vocab_size": 49152},
    ),
    "adept/persimmon-8b-base": _llama("Persimmon", 4096, 36, 64, 64, 16384, 262144),
    "google/gemma-7b": _llama(
        "Gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256, tie_word_embeddings=True
    ),
    "google/gemma-2-9b": _llama(
        "Gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, tie_word_embeddings=True
    ),
    "google/gemma-2-27b": _llama(
        "Gemma2", 4608, 46, 32, 16, 36864, 256000, head_dim=128, tie_word_embeddings=True
    ),
    "google/gemma-3-4b-it": _gemma3(2560, 34, 8, 4, 10240, 256),
    "google/gemma-3-12b-it": _gemma3(3840, 48, 16, 8, 15360, 256),
    "google/gemma-3-27b-it": _gemma3(5376, 62, 32, 16, 21504, 128),
    "baichuan-inc/Baichuan2-7B-Chat": _llama("Llama", 4096, 32, 32, 32, 11008, 125696),
    "baichuan-inc/Baichuan2-13B-Chat": _llama("Llama", 5120, 40, 40, 40, 13696, 125696),
    "Qwen/Qwen1.5-7B": _llama("Qwen2", 4096, 32, 32, 32, 11008, 151936),
    "Qwen/Qwen2-7B": MODELS["qwen2-7b"],
    "Qwen/Qwen2.5-7B": MODELS["qwen2-7b"],
    "Qwen/Qwen2.5-72B": _llama("Qwen2", 8192, 80, 64, 8, 29568, 152064),
    "Qwen/Qwen3-8B": MODELS["qwen3-8b"],
    "tiiuae/falcon-7b": (
        "Falcon",
        _FALCON
        | {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
        | {"multi_query": True},
    ),
    "tiiuae/falcon-40b": MODELS["falcon-40b"],
    "tiiuae/falcon-180B": (
        "Falcon",
        _FALCON
        | {"hidden_size": 14848, "num_hidden_layers": 80, "num_attention_heads": 232}
        | {"num_kv_heads": 8, "new_decoder_architecture": True},
    ),
    "mosaicml/mpt-7b": ("Mpt", {"d_model": 4096, "n_layers": 32, "n_heads": 32}),
    "mosaicml/mpt-30b": ("Mpt", {"d_model": 7168, "n_layers": 48, "n_heads": 64}),
    "CohereForAI/c4ai-command-r-v01": _llama(
        "Cohere", 8192, 40, 64, 64, 22528, 256000, tie_word_embeddings=True
    ),
    "facebook/xglm-1.7B": (
        "XGLM",
        {"d_model": 2048, "num_layers": 24, "attention_heads": 16, "ffn_dim": 8192}
        | {"vocab_size": 256008},
    ),
    "facebook/opt-66b": (
        "OPT",
        {"hidden_size": 9216, "num_hidden_layers": 64, "num_attention_heads": 72}
        | {"ffn_dim": 36864},
    ),
}
"""By the name in decoding.csv. Those of Baichuan and ChatGLM have code of their own, of the same
products as the class that is named here, but that Baichuan's query, key and value are one."""
