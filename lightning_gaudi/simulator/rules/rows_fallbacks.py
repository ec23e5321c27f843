"""Rules about operators without a kernel on the card: copied to the host, computed, copied back.

The vendor registers one CPU fallback for all of them. An operator arrives there if it has neither
a kernel of the vendor's nor one that torch composes of other operators. Both are known: the first
from `scripts/hpu_op.yaml` of 1.24.1 and the registrations in C++ of 1.24.0, the second from torch.
"""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_NOT_LISTED = "bridge 1.24.1 scripts/hpu_op.yaml (not listed); 1.24.0 habana_eager/*.cpp"
_TO_CPU = "Call it on the CPU, where it is needed rarely: f(x.cpu()).to(x.device)."


def _no_kernel(
    key: str, operators: str, what: str, instead: str = _TO_CPU, source: str = _NOT_LISTED
) -> Rule:
    """Returns a row for operators without a kernel, given by their names without "aten::"."""
    names = tuple(f"aten::{name}" for name in operators.split())
    return Rule(key, Verdict.ON_CPU, names, f"{what}: the host waits and computes", instead, source)


ROWS: tuple[Rule, ...] = (
    _no_kernel("svd-on-cpu", "_linalg_svd", "has no singular value decomposition"),
    _no_kernel(
        "eigh-on-cpu",
        "_linalg_eigh",
        "has no eigenvalue decomposition of symmetric matrices",
    ),
    _no_kernel(
        "solve-on-cpu",
        "_linalg_det _linalg_slogdet _linalg_solve_ex linalg_inv_ex",
        "has no inverse, no determinant and no solver of linear systems",
        "Factor with torch.linalg.qr or cholesky, which a card has, or compute on the CPU.",
    ),
    _no_kernel(
        "lu-on-cpu",
        "linalg_lu linalg_lu_factor_ex linalg_lu_solve lu_unpack",
        "has no LU decomposition",
    ),
    _no_kernel(
        "triangular-solve-on-cpu",
        "linalg_solve_triangular triangular_solve _cholesky_solve_helper",
        "has no solver of triangular systems, so none of cholesky_solve either",
        "Multiply with torch.cholesky_inverse, which a card has, or solve on the CPU.",
    ),
    _no_kernel("lstsq-on-cpu", "linalg_lstsq", "has no least squares"),
    _no_kernel(
        "householder-on-cpu",
        "geqrf ormqr linalg_householder_product",
        "has no products of Householder reflections",
        "Use torch.linalg.qr, which a card has.",
    ),
    _no_kernel("ldl-on-cpu", "linalg_ldl_factor_ex linalg_ldl_solve", "has no LDL decomposition"),
    _no_kernel("matrix-exp-on-cpu", "linalg_matrix_exp", "has no matrix exponential"),
    _no_kernel(
        "unique-consecutive-on-cpu",
        "unique_consecutive unique_dim_consecutive",
        "has no unique_consecutive",
        "Compare neighbours, x[1:] != x[:-1], and keep the mask.",
    ),
    _no_kernel(
        "mode-on-cpu",
        "mode nanmedian",
        "has no mode and no nanmedian",
        "Use median, which a card has, or compute on the CPU.",
    ),
    _no_kernel(
        "cummax-on-cpu",
        "_cummax_helper _cummin_helper",
        "has no cummax and no cummin",
        "Use logcumsumexp if a smooth maximum will do, or compute on the CPU.",
    ),
    _no_kernel(
        "special-functions-on-cpu",
        "i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr special_zeta "
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
        "special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
        "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
        "special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
        "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
        "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
        "special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_laguerre_polynomial_l special_legendre_polynomial_p",
        "has of torch.special no Bessel functions, no polynomials, no ndtri and no zeta",
        "Write it with exp, log and erf, or compute it on the CPU.",
    ),
    _no_kernel(
        "polygamma-on-cpu",
        "polygamma",
        "has lgamma and digamma but no polygamma, so no second derivative of lgamma",
    ),
    _no_kernel(
        "gamma-samples-on-cpu",
        "_standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad binomial cauchy_",
        "draws no samples of Gamma, Beta, Dirichlet, StudentT, Binomial and Cauchy distributions",
        "Draw them on the CPU, in the data pipeline, or transform torch.randn and torch.rand.",
    ),
    _no_kernel(
        "fold-on-cpu",
        "col2im",
        "has no fold, so no gradient of unfold either",
        "Use conv_transpose2d with a fixed kernel, or reshape if patches do not overlap.",
    ),
    Rule(
        "unfold-on-cpu",
        Verdict.ON_CPU,
        ("aten::im2col",),
        what="has no functional.unfold in eager mode: the host waits and computes",
        instead="Reshape if patches do not overlap, use Tensor.unfold, or use conv2d.",
        source="bridge 1.24.1 scripts/hpu_op.yaml (im2col: not in eager mode)",
        mode="eager",
    ),
    Rule(
        "unfold-on-cpu-but-vit-patches",
        Verdict.ON_CPU,
        ("aten::im2col",),
        what="has functional.unfold of 14 x 14 patches of stride 14 only: the CPU computes others",
        instead="Reshape if patches do not overlap, or use conv2d.",
        source="bridge 1.24.1 scripts/hpu_op.yaml (im2col); 1.24.0 hpu_ops/backend/im2col_gen.cpp",
        mode="lazy",
        when="patches_not_of_14",
    ),
    Rule(
        "tensor-unfold-on-cpu",
        Verdict.ON_CPU,
        ("aten::unfold",),
        what="has no Tensor.unfold in lazy mode: the result is a copy, so writing to it is lost",
        instead="Stack slices, or use eager mode.",
        source="bridge 1.24.0 habana_eager/ops/view.cpp (eager mode alone); "
        "bridge 1.19.0 tests/pytest_working/any_mode/test_hpu_unfold.py",
        mode="lazy",
    ),
    _no_kernel(
        "adaptive-max-pool-backward-on-cpu",
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward",
        "has adaptive max pooling but not its gradient",
        "Use max_pool2d with a fixed window, or adaptive_avg_pool2d.",
    ),
    _no_kernel(
        "fractional-max-pool-on-cpu",
        "fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d "
        "fractional_max_pool3d_backward",
        "has no fractional max pooling",
        "Use max_pool2d or avg_pool2d.",
    ),
    _no_kernel("gcd-on-cpu", "gcd lcm", "has no gcd and no lcm"),
    _no_kernel(
        "fake-quantize-on-cpu",
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
        "_fake_quantize_learnable_per_tensor_affine "
        "_fake_quantize_learnable_per_tensor_affine_backward "
        "_fake_quantize_learnable_per_channel_affine "
        "_fake_quantize_learnable_per_channel_affine_backward _fused_moving_avg_obs_fq_helper",
        "has no fake quantization, so none of torch.ao's quantization-aware training",
        "Write it with round and clamp and a straight-through gradient, or train in float8.",
    ),
    _no_kernel(
        "segment-reduce-on-cpu",
        "segment_reduce _segment_reduce_backward",
        "has no segment_reduce",
        "Use scatter_reduce or index_add with the segment of each row.",
    ),
    _no_kernel(
        "fused-sgd-on-cpu",
        "_fused_sgd_ _fused_adagrad_",
        "has no fused SGD and Adagrad of torch.optim, so every step moves all parameters",
        "Use fused=False, or the vendor's FusedSGD; in lazy mode also its FusedAdagrad.",
    ),
    _no_kernel(
        "fused-adamw-tensor-lr-on-cpu",
        "_fused_adamw_.tensor_lr",
        "has AdamW(fused=True) only with a number as lr, none with a tensor",
        "Give lr as a float, or use fused=False.",
    ),
    _no_kernel(
        "grad-scaler-update-on-cpu",
        "_amp_update_scale_",
        "has no update of a GradScaler's scale",
        "Train in bfloat16, which needs no GradScaler.",
    ),
    Rule(
        "grad-scaler-unscale-on-cpu",
        Verdict.ON_CPU,
        ("aten::_amp_foreach_non_finite_check_and_unscale_",),
        what="unscales gradients for a GradScaler on the CPU in lazy mode: all of them are copied",
        instead="Train in bfloat16, which needs no GradScaler.",
        source="bridge 1.24.0 habana_eager/eager_custom_op_register.cpp (eager mode alone)",
        mode="lazy",
    ),
    _no_kernel(
        "embedding-bag-inference-on-cpu",
        "_embedding_bag_forward_only",
        "has embedding_bag only for weights that need gradients",
        "Use embedding and a sum or mean over the bag, or leave requires_grad on.",
    ),
    _no_kernel(
        "embedding-bag-weights-on-cpu",
        "_embedding_bag_per_sample_weights_backward",
        "has no gradient of embedding_bag's per_sample_weights",
        "Use embedding, and multiply with the weights before the sum.",
    ),
    _no_kernel(
        "histogramdd-on-cpu",
        "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
        "has histogram and histc but no histogramdd",
    ),
    _no_kernel(
        "nonzero-static-on-cpu",
        "nonzero_static",
        "has no nonzero_static, whose fixed size saves no wait here",
        "Keep the mask and use torch.where, or topk of the mask for a fixed number of indices.",
    ),
    _no_kernel(
        "assert-async-message-on-cpu",
        "_assert_async.msg",
        "has torch._assert_async only without a message",
        "Leave the message out.",
    ),
    _no_kernel(
        "no-kernel",
        "_compute_linear_combination _int_mm _masked_softmax _masked_softmax_backward "
        "_native_multi_head_attention _transform_bias_rescale_qkv "
        "_transformer_encoder_layer_fwd _weight_int8pack_mm glu_backward_jvp is_set_to "
        "max.unary_out min.unary_out mvlgamma.out range unfold_backward",
        "has no kernel for this operator",
    ),
)
"""Operators that a card sends to the CPU, whatever their arguments."""
