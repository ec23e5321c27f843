"""Small models of transformers, forward and backward, against the CPU: eager and compiled."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore")

Sizes = dict[str, Any]

_COMMON: Sizes = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}
_HEADS_OF_8 = {**_GROUPED, "head_dim": 8}
_EMBEDDED = {**_COMMON, "embedding_size": 32}
_GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_ROTARY = {**_GPT, "rotary_dim": 4}
_XLM = {"vocab_size": 64, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}
_T5 = {
    **{"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "decoder_start_token_id": 0,
}
_BART = {
    **{"vocab_size": 64, "d_model": 32, "max_position_embeddings": 64},
    **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
_OPT = {
    **{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
}
_NEO = {
    **{"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8},
    **{"max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]]},
}
_MPT = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
_DISTIL = {
    **{"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "max_position_embeddings": 64,
}
_MOBILE = {**_EMBEDDED, "intra_bottleneck_size": 32}
_REM = {**_COMMON, "input_embedding_size": 32, "output_embedding_size": 32}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 32}
_PATCHES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "image_size": 32, "patch_size": 8, "num_labels": 5},
}
_STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 5}
_RESIDUAL = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
_WINDOWS = {
    **{"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2]},
    **{"window_size": 4, "num_labels": 5},
}

MASKED: dict[str, Sizes] = {
    **dict.fromkeys(("Bert", "Roberta", "Deberta", "DebertaV2", "MPNet", "Camembert"), _COMMON),
    **dict.fromkeys(("XLMRoberta", "ModernBert", "Nystromformer"), _COMMON),
    **dict.fromkeys(("Electra", "Albert", "ConvBert"), _EMBEDDED),
    **{"DistilBert": _DISTIL, "MobileBert": _MOBILE, "RemBert": _REM, "XLM": _XLM},
    "Esm": {**_COMMON, "mask_token_id": 3},
}
CAUSAL: dict[str, Sizes] = {
    **{"GPT2": _GPT, "GPTNeo": _NEO, "GPTNeoX": _COMMON, "OPT": _OPT, "Mpt": _MPT, "Phi": _COMMON},
    **dict.fromkeys(("GPTJ", "CodeGen"), _ROTARY),
    "Bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {k: _COMMON[k] for k in [*_COMMON][:4]},
    **dict.fromkeys(("Llama", "Mistral", "Qwen2", "Phi3", "Starcoder2", "StableLm"), _GROUPED),
    **dict.fromkeys(("Olmo", "Olmo2", "Cohere", "Granite"), _GROUPED),
    **dict.fromkeys(("Qwen3", "Gemma", "Gemma2", "Glm"), _HEADS_OF_8),
    "Mixtral": {**_GROUPED, "num_local_experts": 4},
    "Qwen2Moe": {**_GROUPED, **_SHARED, "num_experts": 4},
    "Qwen3Moe": {**_HEADS_OF_8, **_EXPERTS, "num_experts": 4},
    "GptOss": {**_HEADS_OF_8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Mamba": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
TRANSLATING: dict[str, Sizes] = {
    **dict.fromkeys(("T5", "MT5"), _T5),
    **dict.fromkeys(("Bart", "MBart", "Pegasus", "Marian", "M2M100", "BlenderbotSmall"), _BART),
}
PICTURES: dict[str, Sizes] = {
    **dict.fromkeys(("ViT", "Beit"), _PATCHES),
    "DeiT": {**_PATCHES, "architectures": ["DeiTForImageClassification"]},
    **{"ResNet": _RESIDUAL, "ConvNext": _STAGES, "Swin": _WINDOWS},
}
TASKS = {
    "AutoModelForMaskedLM": MASKED,
    "AutoModelForCausalLM": CAUSAL,
    "AutoModelForSeq2SeqLM": TRANSLATING,
    "AutoModelForImageClassification": PICTURES,
}
MODELS = {name: (task, sizes) for task, models in TASKS.items() for name, sizes in models.items()}
REFUSED_IN_BF16 = ("Deberta",)
"""What raises on the CPU, too: it masks with the least number of float32."""

LOSS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Relative to the CPU's, by the precision of the autocast."""
GRADIENT = {torch.float32: 1e-3, torch.bfloat16: 0.3}
"""The norm of the difference, relative to the CPU's and 1 % of the model's largest: a bias before a
softmax or a norm has a gradient of almost 0, of which bfloat16 leaves noise."""


def _model(name: str) -> Any:
    task, sizes = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    for attribute, value in vars(config).items():
        if "drop" in attribute and isinstance(value, float):
            setattr(config, attribute, 0.0)
    torch.manual_seed(0)
    return getattr(transformers, task).from_config(config).eval()


def _batch(name: str) -> dict[str, Tensor]:
    """B = 2; pictures of 32 x 32, or 16 tokens that are their own labels."""
    generator = torch.Generator().manual_seed(1)
    if name in PICTURES:
        pixels = torch.randn(2, 3, 32, 32, generator=generator)
        return {"pixel_values": pixels, "labels": torch.tensor([1, 3])}
    ids = torch.randint(3, 64, (2, 16), generator=generator)
    mask = {} if name == "Mamba" else {"attention_mask": torch.ones_like(ids)}
    return {"input_ids": ids, "labels": ids.clone(), **mask}


def _step(
    model: nn.Module, batch: dict[str, Tensor], device: str, dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """The loss, and gradients by name, on the CPU."""
    batch = {name: each.to(device) for name, each in batch.items()}
    with torch.autocast(device, torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    named = {name.replace("_orig_mod.", ""): each.grad for name, each in model.named_parameters()}
    return float(loss), {
        name: each.float().cpu() for name, each in named.items() if each is not None
    }


def _compare(name: str, dtype: torch.dtype, *, is_compiled: bool) -> None:
    model, batch = _model(name), _batch(name)
    expected, gradients = _step(copy.deepcopy(model), batch, "cpu", dtype)
    on_card: Any = model.to("hpu")
    if is_compiled:
        on_card = torch.compile(on_card, backend="hpu_backend", dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, others = _step(on_card, batch, "hpu", dtype)
    assert found == pytest.approx(expected, rel=LOSS[dtype])
    assert others.keys() == gradients.keys()
    floor = 0.01 * max(float(each.norm()) for each in gradients.values())
    for key, gradient in gradients.items():
        difference = (others[key] - gradient).norm() / (gradient.norm() + floor)
        assert float(difference) <= GRADIENT[dtype], key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_does_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    if name in REFUSED_IN_BF16 and dtype is torch.bfloat16:
        with pytest.raises(RuntimeError, match="without overflow"):
            _step(_model(name), _batch(name), "cpu", dtype)
        return
    _compare(name, dtype, is_compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Llama", "Qwen3", "Gemma2", "Mamba", "Mixtral", "ModernBert", "T5", "Bart", "Swin"]
)
def test_a_compiled_model_computes_what_it_does_on_the_cpu(name: str) -> None:
    """In bfloat16: where operators compute in another type, layouts are the hardest to predict."""
    torch.compiler.reset()
    try:
        _compare(name, torch.bfloat16, is_compiled=True)
    finally:
        torch.compiler.reset()
