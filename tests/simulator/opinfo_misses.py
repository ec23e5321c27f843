"""Where the simulated device parts from the CPU, or from FakeTensor, and why.

FORWARD, BACKWARD and STRIDES are strict xfails: once a variant passes, its test fails until the
entry is deleted. The other tables are exact as well, see the tests that read them.
"""

from __future__ import annotations

_NO_CPU = "torch has no CPU kernel to run or to compare with"
_SPARSE = "sparse tensors are not supported on HPU"

_WITHOUT_CPU_KERNEL = dict.fromkeys(
    (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
        "nn.functional.batch_norm.without_cudnn",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ),
    _NO_CPU,
)
_WITHOUT_TENSORS = {"broadcast_shapes": "it takes sizes alone, so it never runs on a device"}
_WITH_SPARSE_ARGUMENTS = dict.fromkeys(("sparse.mm.reduce", "sparse.sampled_addmm"), _SPARSE)

FORWARD: dict[str, str] = {
    **_WITHOUT_CPU_KERNEL,
    **_WITHOUT_TENSORS,
    **_WITH_SPARSE_ARGUMENTS,
    "to_sparse": _SPARSE,
}
"""Variants whose forward does not equal the CPU's."""

BACKWARD: dict[str, str] = {
    **_WITH_SPARSE_ARGUMENTS,
    "to_sparse": _SPARSE,
}
"""Variants whose gradients do not equal the CPU's."""

LAST_BITS = {
    "cholesky_inverse",
    "istft",
    "linalg.eig",
    "linalg.eigh",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "linalg.pinv.hermitian",
    "linalg.pinv.singular",
    "linalg.svd",
    "linalg.svdvals",
    "norm.nuc",
    "pca_lowrank",
    "svd",
    "svd_lowrank",
}
"""Gradients that are compared at a tolerance.

Pointwise outputs are row-major on HPU, so a later product, or FFT, may sum in another order.
Whether it does is up to the CPU: MKL has code for each of its models.
"""

STRIDES: dict[str, str] = {
    **_WITHOUT_CPU_KERNEL,
    **_WITHOUT_TENSORS,
    **_WITH_SPARSE_ARGUMENTS,
    "_native_batch_norm_legit": "in eval the CPU kernel saves no statistics, others are said to",
    "native_batch_norm": "in eval the CPU kernel saves no statistics, others are said to",
    "nonzero_static": "torch predicts CUDA's column-major output for every unknown device",
    "tensor_split": "it reads indices on the CPU, whose data a fake tensor does not have",
    "to_sparse": _SPARSE,
}
"""Variants whose outputs have other shapes or strides than FakeTensor predicts for hpu."""

LAYOUTS: dict[str, str] = {
    **{name: why for name, why in _WITHOUT_CPU_KERNEL.items() if name.startswith("jiterator")},
    "kron": "torch predicts the layout of a product before it is reshaped",
    "native_dropout_backward": "torch predicts channels-last of those arguments, else row-major",
    "nn.functional.rrelu": "torch's CPU kernel is row-major, where it predicts the input's layout",
    **_WITH_SPARSE_ARGUMENTS,
    "tensor_split": STRIDES["tensor_split"],
    "to_sparse": _SPARSE,
}
"""Variants that miss in other dtypes, or with transposed or channels-last arguments."""

OTHER_ORDER = {
    "masked.var",
    "nn.functional.cosine_embedding_loss",
    "nn.functional.cosine_similarity",
    "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none",
}
"""What sums in another order than the CPU, as row-major intermediate results: at a tolerance."""

UNDEFINED_CONTENTS = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
"""Outputs are memory as it was found: shape, dtype and device are compared, values are not."""

NOT_DETERMINISTIC = {"linalg.lstsq", "linalg.lstsq.grad_oriented"}
"""On the CPU two runs differ in their last bits (LAPACK's gelsy): compared at a tolerance."""

WITHOUT_PREDICTION = {
    "allclose",
    "argwhere",
    "bincount",
    "combinations",
    "corrcoef",
    "cov",
    "equal",
    "istft",
    "item",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "masked_select",
    "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss",
    "nonzero",
    "unique",
    "unique_consecutive",
}
"""Their output depends on data that FakeTensor does not have, in every sample."""

COMPILED: dict[str, str] = {
    name: why for name, why in FORWARD.items() if name not in _WITHOUT_TENSORS
}
"""Variants that, compiled, do not equal the CPU's."""

DECOMPOSED = {
    "linalg.cond",
    "linalg.eigvalsh",
    "linalg.svdvals",
    "nn.functional.interpolate.bicubic",
    "nn.functional.interpolate.bilinear",
    "nn.functional.interpolate.linear",
    "nn.functional.interpolate.trilinear",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.upsample_bilinear",
}
"""What torch takes apart before a backend sees it: compiled, at a tolerance."""
