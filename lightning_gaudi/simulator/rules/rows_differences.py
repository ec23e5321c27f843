"""Rules about operators that a card has, but computes otherwise than the CPU does."""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_FLAGS = "bridge 1.24.0 scripts/env_flags.yaml"
_SEEN = "seen on cards: huggingface/transformers issue 39175 (2025-07)"

ROWS: tuple[Rule, ...] = (
    Rule(
        "gelu-as-tanh",
        Verdict.NOTED,
        ("aten::gelu", "aten::gelu_backward"),
        what="computes exact GELU by its tanh approximation, which differs by up to 5e-4",
        instead="Train with approximate='tanh' everywhere, or set PT_HPU_FORCE_TANH_FOR_GELU=0.",
        source="bridge 1.24.0 hpu_ops/backend/gelu_gen.cpp; "
        + _FLAGS
        + " (PT_HPU_FORCE_TANH_FOR_GELU)",
        when="approximate_none",
    ),
    Rule(
        "attention-unfused",
        Verdict.NOTED,
        ("aten::_scaled_dot_product_flash_attention_for_cpu",),
        what="composes F.scaled_dot_product_attention of operators: nine launches and more, where "
        "the vendor's FusedSDPA is one",
        instead="Set LIGHTNING_GAUDI_FUSED_ATTENTION=1, a Trainer's and Fabric's default, or call "
        "habana_frameworks.torch.hpex.kernels.FusedSDPA.",
        source="bridge 1.24.0 habana_eager/ops/fused_sdpa.cpp; 1.19.0 hpex/kernels/FusedSDPA.py",
    ),
    Rule(
        "nonzero-out-untouched",
        Verdict.DEMOTED,
        ("aten::nonzero.out",),
        what="returns the out= of torch.nonzero as it was, with none of the indices in it",
        instead="Call torch.nonzero(x) without out=.",
        source="bridge 1.24.0 habana_eager/kernels_impl.cpp (nonzero_out)",
        dtypes=("float32", "bfloat16", "float16", "int32", "bool"),
        mode="eager",
    ),
    Rule(
        "uint8-mask-as-indices",
        Verdict.DEMOTED,
        ("aten::_index_put_impl_",),
        what="takes a uint8 tensor among indices as numbers of rows, not as a mask",
        instead="Convert the mask to bool.",
        source="bridge 1.24.0 habana_eager/ops/index_put.cpp (masks are bool alone)",
        mode="eager",
        when="uint8_among_indices",
    ),
    Rule(
        "bincount-in-32-bits",
        Verdict.DEMOTED,
        ("aten::bincount",),
        what="sums the weights of bincount in 32 bits, and widens the result to float64 afterwards",
        instead="Count on the CPU where 32 bits do not hold the sums.",
        source="bridge 1.24.0 habana_eager/ops/bincount.cpp (cast_to_32)",
        dtypes=("float64",),
        mode="eager",
    ),
    Rule(
        "unsorted-unique-order",
        Verdict.NOTED,
        ("aten::_unique2",),
        what="gives the distinct values of unique(sorted=False) in an order of its own",
        instead="Sort them where the order matters.",
        source="bridge 1.24.0 habana_eager/ops/unique2.cpp (flip)",
        when="sorted_false",
    ),
    Rule(
        "random-numbers-differ",
        Verdict.NOTED,
        (
            *("aten::uniform_", "aten::normal_", "aten::random_", "aten::randperm"),
            *("aten::bernoulli_", "aten::bernoulli", "aten::native_dropout", "aten::multinomial"),
            *("aten::exponential_", "aten::geometric_", "aten::log_normal_", "aten::poisson"),
        ),
        what="draws other random numbers from the same seed than the CPU",
        instead="Draw on the CPU what must be the same on both.",
        source="bridge 1.19.0 backend/random.cpp (get_seed_hpu); bridge 1.24.1 scripts/hpu_op.yaml "
        "(uniform_: philox_random_uniform)",
    ),
    Rule(
        "division-not-precise",
        Verdict.NOTED,
        ("aten::div.Tensor", "aten::div.out", "aten::div_.Tensor"),
        what="divides with a fast kernel, whose last digits may differ",
        instead="Set PT_HPU_ENABLE_DIV_PRECISE=1 where they matter.",
        source=_FLAGS + " (PT_HPU_ENABLE_DIV_PRECISE)",
    ),
    Rule(
        "scatter-add-unordered",
        Verdict.NOTED,
        ("aten::scatter_add", "aten::scatter_add_"),
        what="adds the values of equal indices in an order of its own in lazy mode",
        instead="Call torch.use_deterministic_algorithms(True) where the last digits matter.",
        source="bridge 1.19.0 habana_kernels/index_kernels.cpp; "
        + _FLAGS
        + " (PT_HPU_USE_UNSORTED_SCATTER_ADD)",
        mode="lazy",
    ),
    Rule(
        "gather-of-int64-wrong",
        Verdict.DEMOTED,
        ("aten::gather",),
        what="has failed to compile a gather of int64 (synStatus 26), or gathered wrong values",
        instead="Gather x.to(torch.int32), or use index_select. In a model of transformers: pass "
        "token_type_ids to a BERT, or call transformers.utils.is_torch_hpu_available() once, which "
        "has torch.gather do so.",
        source=_SEEN + " and 39118, on Gaudi 2 and 3; transformers 5.23 (is_torch_hpu_available)",
        dtypes=("int64",),
        mode="eager",
        when="self_is_int64",
    ),
    Rule(
        "scatter-from-itself-wrong",
        Verdict.DEMOTED,
        ("aten::scatter.src",),
        what="has scattered wrong values where the source shares memory with the tensor",
        instead="Pass src.clone().",
        source=_SEEN + ", on a Gaudi 3",
        when="source_shares_memory",
    ),
    Rule(
        "masked-fill-of-int64-refused",
        Verdict.REFUSED,
        ("aten::masked_fill", "aten::masked_fill_"),
        what="of the first generation has no kernel for masked_fill of int64 (synStatus 26)",
        instead="Fill x.to(torch.int32), or use torch.where.",
        source=_SEEN + "; huggingface/transformers pull request 36424 (masked_fill_fwd_i64)",
        dtypes=("int64",),
        mode="eager",
        cards=("gaudi1",),
        when="self_is_int64",
    ),
    Rule(
        "cholesky-nan",
        Verdict.NOTED,
        ("aten::linalg_cholesky_ex", "aten::cholesky"),
        what="may return NaN of a matrix that is barely positive definite",
        instead="Add a small multiple of the unit matrix, or compute it on the CPU.",
        source=_SEEN + ", on a Gaudi 3",
    ),
    Rule(
        "embedding-bag-gradient-unordered",
        Verdict.NOTED,
        ("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"),
        what="adds the gradients of equal rows in no fixed order",
        instead="Call torch.use_deterministic_algorithms(True), which moves it to the CPU.",
        source="bridge 1.24.0 hpu_ops/backend/embedding_bag_gen.cpp",
    ),
    Rule(
        "stochastic-rounding-flushes",
        Verdict.NOTED,
        ("hpu::cast_to_fp8_v2", "hpu::cast_to_fp8"),
        what="rounds to float8 stochastically with values below the smallest flushed to zero",
        instead="Set PT_HPU_STOCHASTIC_ROUNDING_MODE=0 to round those, too.",
        source=_FLAGS + " (PT_HPU_STOCHASTIC_ROUNDING_MODE)",
    ),
)
"""What a card computes otherwise."""
