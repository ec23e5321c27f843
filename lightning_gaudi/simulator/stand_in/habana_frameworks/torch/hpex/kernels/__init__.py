"""Fused kernels."""

from ...._aliases import alias_modules
from ...._missing import missing
from .ctc_loss import CTCLoss
from .custom_softmax import CustomSoftmax
from .fp8_fused_sdpa import fp8_fused_sdpa, fp8_sdpa_bwd_wrapper, fp8_sdpa_fwd_wrapper
from .fused_sdpa import FusedSDPA, gqa_output_reshape
from .mixture_of_experts import (
    mixture_of_experts_bwd_fp8_wrapper,
    mixture_of_experts_fwd_fp8_wrapper,
)
from .py_sdpa import PySDPA, PySDPAHinted, flex_attention_bwd, flex_attention_fwd
from .rotary_pos_embedding import (
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingHelperV3,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)

__all__ = [
    "CTCLoss",
    "CustomSoftmax",
    "FusedSDPA",
    "PySDPA",
    "PySDPAHinted",
    "RotaryPosEmbeddingHelperV1",
    "RotaryPosEmbeddingHelperV2",
    "RotaryPosEmbeddingHelperV3",
    "RotaryPosEmbeddingMode",
    "apply_rotary_pos_emb",
    "flex_attention_bwd",
    "flex_attention_fwd",
    "fp8_fused_sdpa",
    "fp8_sdpa_bwd_wrapper",
    "fp8_sdpa_fwd_wrapper",
    "gqa_output_reshape",
    "mixture_of_experts_bwd_fp8_wrapper",
    "mixture_of_experts_fwd_fp8_wrapper",
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
__getattr__ = missing(__name__)
