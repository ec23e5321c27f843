"""Rules about types: which a card does not have, and which it keeps in a smaller one.

Both modes keep float64 as float32, since the memory of such a tensor holds 4 bytes an element;
lazy mode keeps int64 as int32 too. What no card can hold is refused where a tensor is made.
"""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_SUPPORT_MATRIX = (
    "PyTorch Support Matrix, "
    "https://docs.habana.ai/en/latest/PyTorch/Reference/PyTorch_Support_Matrix.html"
)
_BEST_PRACTICES = (
    "Best Practices for Model Training with Gaudi, https://docs.habana.ai/en/latest/PyTorch/"
    "Model_Optimization_PyTorch/Best_Practices_for_Model_Training_on_Gaudi.html"
)
_SUPPORTED_TYPES = "bridge 1.24.0 backend/helpers/tensor_utils.cpp (is_supported_type)"
_COPIES = ("aten::copy_", "aten::_copy_from")
"""The operators of a copy: torch turns the first into the second, except in lazy mode."""

ROWS: tuple[Rule, ...] = (
    Rule(
        "float64-demoted",
        Verdict.DEMOTED,
        ("*",),
        what="has no float64: such a tensor is kept and computed in float32",
        instead="Use torch.float32, or compute on the CPU what needs float64.",
        source="bridge 1.24.0 habana_eager/ops/copy_from.cpp; " + _SUPPORT_MATRIX,
        dtypes=("float64",),
    ),
    Rule(
        "float64-overflows",
        Verdict.DEMOTED,
        _COPIES,
        what="turns a float64 beyond the largest float32 into inf on its way to the card",
        instead="Scale the values into the range of float32 before the copy.",
        source="bridge 1.24.0 habana_eager/ops/copy_from.cpp (_copy_from_h2d)",
        dtypes=("float64",),
        mode="eager",
        when="from_host_beyond_float32",
    ),
    Rule(
        "float64-beyond-float32-refused",
        Verdict.REFUSED,
        _COPIES,
        what="refuses to copy a float64 beyond the range of float32 to the card in lazy mode",
        instead="Scale the values into the range of float32 before the copy.",
        source="bridge 1.19.0 habana_kernels/lazy_kernels.cpp (validateDownCast); "
        "bridge 1.24.0 scripts/env_flags.yaml (PT_HPU_ENABLE_VALID_DATA_RANGE_CHECK)",
        dtypes=("float64",),
        mode="lazy",
        when="from_host_beyond_float32",
    ),
    Rule(
        "int64-as-int32",
        Verdict.DEMOTED,
        ("*",),
        what="keeps int64 as int32 in lazy mode, so this value loses its upper 32 bits",
        instead="Keep values below 2**31, compute them on the CPU, or use eager mode.",
        source="bridge 1.24.0 scripts/env_flags.yaml (PT_ENABLE_INT64_SUPPORT)",
        dtypes=("int64",),
        mode="lazy",
        when="beyond_int32",
    ),
    Rule(
        "int64-as-int32-on-gaudi1",
        Verdict.DEMOTED,
        ("*",),
        what="of the first generation keeps int64 as int32 in eager mode too",
        instead="Keep values below 2**31, or compute them on the CPU.",
        source="bridge 1.19.0 scripts/env_flags.yaml (PT_ENABLE_INT64_SUPPORT: Gaudi 2 or newer)",
        dtypes=("int64",),
        mode="eager",
        cards=("gaudi1",),
        when="beyond_int32",
    ),
    Rule(
        "int64-beyond-int32-refused",
        Verdict.REFUSED,
        _COPIES,
        what="refuses to copy an int64 beyond the range of int32 to the card in lazy mode",
        instead="Reduce the values on the CPU first, as a hash modulo 2**31, or use eager mode.",
        source="bridge 1.19.0 habana_kernels/lazy_kernels.cpp (validateDownCast); "
        "bridge 1.24.0 scripts/env_flags.yaml (PT_HPU_ENABLE_VALID_DATA_RANGE_CHECK)",
        dtypes=("int64",),
        mode="lazy",
        when="from_host_beyond_int32",
    ),
    Rule(
        "complex-refused",
        Verdict.REFUSED,
        ("*",),
        what="has no complex tensors and raises where one is made",
        instead="Keep real and imaginary parts in a last dimension of size 2, or use the CPU.",
        source=_SUPPORTED_TYPES,
        dtypes=("complex32", "complex64", "complex128"),
    ),
    Rule(
        "complex-stays-on-host",
        Verdict.NOTED,
        ("aten::complex",),
        what="makes torch.complex of two of its tensors on the host, and the result stays there: "
        "the simulator refuses it",
        instead="Keep real and imaginary parts in a last dimension of size 2.",
        source="bridge 1.19.0 habana_eager/ops/complex.cpp, tests/pytest_working/lazy/"
        "test_complex.py; bridge 1.24.1 scripts/hpu_op.yaml (complex)",
    ),
    Rule(
        "complex-views-refused",
        Verdict.REFUSED,
        ("aten::polar", "aten::view_as_complex"),
        what="has no complex tensors, and this makes one",
        instead="Keep real and imaginary parts in a last dimension of size 2.",
        source=_SUPPORTED_TYPES + "; bridge 1.24.1 scripts/hpu_op.yaml has neither",
    ),
    Rule(
        "fft-refused",
        Verdict.REFUSED,
        ("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"),
        what="has no Fourier transforms: the CPU computes one, and its complex result is refused",
        instead="Transform on the CPU, x.cpu(), and move torch.view_as_real of the result.",
        source=_SUPPORTED_TYPES + "; bridge 1.24.1 scripts/hpu_op.yaml has no _fft_*",
    ),
    Rule(
        "eigenvalues-refused",
        Verdict.REFUSED,
        ("aten::linalg_eig", "aten::_linalg_eigvals"),
        what="has no general eigenvalues: the CPU computes them, and complex results are refused",
        instead="Compute on the CPU, x.cpu(), and move torch.view_as_real of the result.",
        source=_SUPPORTED_TYPES + "; bridge 1.24.1 scripts/hpu_op.yaml has no linalg_eig",
    ),
    Rule(
        "unsigned-refused",
        Verdict.REFUSED,
        ("*",),
        what="has no unsigned integers but uint8 and raises where a tensor of them is made",
        instead="Use the signed type of twice the width.",
        source=_SUPPORTED_TYPES,
        dtypes=("uint16", "uint32", "uint64"),
    ),
    Rule(
        "float8-variants-refused",
        Verdict.REFUSED,
        ("*",),
        what="has no small floats but float8_e4m3fn and float8_e5m2 and raises",
        instead="Use torch.float8_e4m3fn, or torch.float8_e5m2 for gradients.",
        source=_SUPPORTED_TYPES,
        dtypes=("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    ),
    Rule(
        "float16-refused-on-gaudi1",
        Verdict.REFUSED,
        ("*",),
        what="of the first generation has no float16 and raises where such a tensor is made",
        instead="Use torch.bfloat16.",
        source="bridge 1.19.0 backend/helpers/tensor_utils.cpp (is_supported_type)",
        dtypes=("float16",),
        cards=("gaudi1",),
    ),
    Rule(
        "float8-refused-on-gaudi1",
        Verdict.REFUSED,
        ("*",),
        what="of the first generation has no float8 and raises where such a tensor is made",
        instead="Use torch.bfloat16, or a newer card.",
        source="bridge 1.19.0 backend/helpers/tensor_utils.cpp (is_supported_type); "
        + _SUPPORT_MATRIX,
        dtypes=("float8_e4m3fn", "float8_e5m2"),
        cards=("gaudi1",),
    ),
    Rule(
        "quantized-refused",
        Verdict.REFUSED,
        (
            "aten::quantize_per_tensor",
            "aten::quantize_per_tensor_dynamic",
            "aten::quantize_per_channel",
        ),
        what="has no quantized tensors and raises where one is made",
        instead="Quantize with the operators of torch.ops.quantized_decomposed, or to float8.",
        source=_SUPPORT_MATRIX + "; " + _SUPPORTED_TYPES,
    ),
    Rule(
        "sparse-refused",
        Verdict.REFUSED,
        (
            "aten::_to_sparse",
            "aten::_to_sparse_csr",
            "aten::_to_sparse_csc",
            "aten::_to_sparse_bsr",
            "aten::_to_sparse_bsc",
            "aten::_sparse_coo_tensor_with_dims",
            "aten::_sparse_coo_tensor_with_dims_and_tensors",
        ),
        what="has no sparse tensors, neither as data nor as gradients of an embedding",
        instead="Use dense tensors, and embeddings with sparse=False.",
        source=_BEST_PRACTICES,
    ),
    Rule(
        "copy-over-8-dims-refused",
        Verdict.REFUSED,
        _COPIES,
        what="refuses to copy a tensor of more than 8 dimensions in lazy mode",
        instead="Merge dimensions with reshape first.",
        source="bridge 1.24.0 habana_kernels/kernels_register.cpp (copy_)",
        mode="lazy",
        when="copied_more_than_8_dims",
    ),
)
"""What a card refuses or keeps smaller, by type."""
