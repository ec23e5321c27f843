"""Fused kernels."""

from ...._aliases import alias_modules
from ...._missing import missing
from ...._unused import folder_of
from .fused_sdpa import FusedSDPA, gqa_output_reshape

__path__.append(folder_of(__name__))

_LATE = {
    "ctc_loss": ("CTCLoss",),
    "custom_softmax": ("CustomSoftmax",),
    "fp8_fused_sdpa": ("fp8_fused_sdpa", "fp8_sdpa_bwd_wrapper", "fp8_sdpa_fwd_wrapper"),
    "mixture_of_experts": (
        "mixture_of_experts_bwd_fp8_wrapper",
        "mixture_of_experts_fwd_fp8_wrapper",
    ),
    "py_sdpa": ("PySDPA", "PySDPAHinted", "flex_attention_bwd", "flex_attention_fwd"),
    "rotary_pos_embedding": (
        "RotaryPosEmbeddingHelperV1",
        "RotaryPosEmbeddingHelperV2",
        "RotaryPosEmbeddingHelperV3",
        "RotaryPosEmbeddingMode",
        "apply_rotary_pos_emb",
    ),
}
__all__ = [
    "FusedSDPA",
    "gqa_output_reshape",
    *(name for names in _LATE.values() for name in names),
]
alias_modules(
    __name__,
    CTCLoss="ctc_loss",
    CustomSoftmax="custom_softmax",
    EmbeddingBag="embedding_bag",
    EmbeddingBagPreproc="embedding_bag_preproc",
    Fp8FusedSDPA="fp8_fused_sdpa",
    FusedSDPA="fused_sdpa",
    MixtureOfExperts="mixture_of_experts",
    PySDPA="py_sdpa",
    RandomSeed="random_seed",
    RotaryPosEmbeddingHelper="rotary_pos_embedding",
    Softmax="softmax",
)
__getattr__ = missing(__name__, _LATE)
