"""Rules about waiting: results whose shape depends on values, and values that the host needs.

Each of the first kind makes the host wait, and every new shape is compiled anew by what follows.
"""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_EAGER = "bridge 1.24.0 habana_eager/"
_LAZY = "bridge 1.19.0 habana_kernels/lazy_kernels.cpp"
_COPY_WIDENED = "bridge 1.19.0 habana_kernels/basic_kernels.cpp (copy_hpu_)"
_TAGS = "torch's tags of operators, aten/src/ATen/native/tags.yaml"
_DYNAMIC_SHAPES = (
    "Handling Dynamic Shapes, https://docs.habana.ai/en/latest/PyTorch/"
    "Model_Optimization_PyTorch/Dynamic_Shapes.html"
)

ROWS: tuple[Rule, ...] = (
    Rule(
        "nonzero-dynamic",
        Verdict.DYNAMIC,
        ("aten::nonzero",),
        what="waits for the number of nonzero elements, and every new number is a new shape",
        instead="Keep the mask and use torch.where, or multiply with it.",
        source=_EAGER + "ops/nonzero.cpp; " + _DYNAMIC_SHAPES,
    ),
    Rule(
        "masked-select-dynamic",
        Verdict.DYNAMIC,
        ("aten::masked_select",),
        what="waits for the number of selected elements, and every new number is a new shape",
        instead="Keep the shape: use torch.where, or multiply with the mask before a reduction.",
        source=_EAGER + "ops/masked_select.cpp; " + _LAZY,
    ),
    Rule(
        "mask-index-dynamic",
        Verdict.DYNAMIC,
        ("aten::index",),
        what="waits for the number of elements that the mask selects: a new shape each time",
        instead="Keep the shape: use torch.where, or multiply with the mask before a reduction.",
        source="bridge 1.24.0 hpu_ops/indexing_ops_helper.cpp (handle_bool_mask_indices)",
        when="mask_among_indices",
    ),
    Rule(
        "mask-beside-indices-dynamic",
        Verdict.DYNAMIC,
        ("aten::_index_put_impl_",),
        what="waits for the number of places to write where a mask stands beside other indices",
        instead="Use torch.where with a mask of the full shape.",
        source=_EAGER + "ops/index_put.cpp (check_for_boolean_advanced_indexing); " + _LAZY,
        when="mask_beside_indices",
    ),
    Rule(
        "mask-write-waits",
        Verdict.WAITS,
        ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
        what="in lazy mode, and of older releases in both, waits for the indices of the mask",
        instead="Use torch.where(mask, value, x) or x.masked_fill_(mask, value).",
        source=_LAZY + "; 1.24.0 habana_eager/ops/index_put.cpp has a way without",
        when="mask_among_indices",
    ),
    Rule(
        "unique-dynamic",
        Verdict.DYNAMIC,
        ("aten::_unique2", "aten::unique_dim"),
        what="waits for the number of distinct values, and every new number is a new shape",
        instead="Call torch.unique on the CPU, in the data pipeline.",
        source=_EAGER + "ops/unique2.cpp, ops/unique_dim.cpp; " + _LAZY,
    ),
    Rule(
        "grouped-mm-dynamic",
        Verdict.DYNAMIC,
        ("aten::_grouped_mm",),
        what="waits for the sizes of the groups, and multiplies each by itself: with every other "
        "routing of tokens to experts come other shapes",
        instead="Load the model with experts_implementation='batched_mm' where transformers has "
        "it; elsewhere multiply with each token's own expert by torch.bmm.",
        source="torch 2.13 ATen/native/GroupedMMUtils.h (_grouped_mm_fallback); bridge 1.24.0 "
        "scripts/hpu_op.yaml, which has no such operator",
    ),
    Rule(
        "bincount-dynamic",
        Verdict.DYNAMIC,
        ("aten::bincount",),
        what="waits for the largest value, whatever minlength is, since it sets the result's size",
        instead="Sum one_hot(x, num_classes), or zeros(n).scatter_add_(0, x, ones).",
        source=_EAGER + "ops/bincount.cpp; " + _LAZY,
    ),
    Rule(
        "repeat-interleave-dynamic",
        Verdict.DYNAMIC,
        ("aten::repeat_interleave.Tensor",),
        what="waits for the sum of the repeats, since it is the result's size",
        instead="Give output_size, if it is known, or repeats as an int.",
        source=_EAGER + "kernels_impl.cpp (repeat_interleave); " + _LAZY,
        when="output_size_missing",
    ),
    Rule(
        "dynamic-shape",
        Verdict.DYNAMIC,
        ("tag::dynamic_output_shape",),
        what="waits for the size of the result, and every new size is a new shape",
        instead="Keep the shape: use torch.where, or multiply with a mask.",
        source=_TAGS + " (whatever no row above is about)",
    ),
    Rule(
        "value-on-host",
        Verdict.WAITS,
        ("tag::data_dependent_output",),
        what="makes the host wait for a value",
        instead="Keep the value on the card, and read it only where it is logged.",
        source=_TAGS + " (whatever no other row is about)",
    ),
    Rule(
        "item-waits",
        Verdict.WAITS,
        ("aten::_local_scalar_dense",),
        what="makes the host wait for a value: item(), float(), int(), bool(), if or print of one",
        instead="Keep the value on the card, and read it only where it is logged.",
        source=_EAGER + "ops/local_scalar_dense.cpp",
    ),
    Rule(
        "equal-waits",
        Verdict.WAITS,
        ("aten::equal",),
        what="makes the host wait for the answer of torch.equal",
        instead="Compare on the card, (a == b).all(), and read the result where it is needed.",
        source="bridge 1.24.1 scripts/hpu_op.yaml (equal, whose result is a Python bool)",
    ),
    Rule(
        "copy-to-host-waits",
        Verdict.WAITS,
        ("aten::copy_", "aten::_copy_from"),
        what="makes the host wait until what it copies to the host is computed",
        instead="Copy with non_blocking=True and read it later, or copy where it is logged.",
        source=_EAGER + "ops/copy_from.cpp (_copy_from_d2h)",
        when="to_host_blocking",
    ),
    Rule(
        "float64-copy-always-waits",
        Verdict.WAITS,
        ("aten::copy_", "aten::_copy_from"),
        what="widens float64 again on the host, so even a copy with non_blocking=True waits",
        instead="Copy torch.float32 to the host, and widen it there.",
        source=_EAGER + "ops/copy_from.cpp (_copy_from_d2h); " + _COPY_WIDENED,
        dtypes=("float64",),
        when="to_host_non_blocking",
    ),
    Rule(
        "int64-copy-always-waits",
        Verdict.WAITS,
        ("aten::copy_", "aten::_copy_from"),
        what="widens int64 again on the host, so even a copy with non_blocking=True waits",
        instead="Copy torch.int32 to the host, and widen it there.",
        source=_COPY_WIDENED,
        dtypes=("int64",),
        mode="lazy",
        when="narrow_integers_to_host_non_blocking",
    ),
    Rule(
        "int64-copy-always-waits-on-gaudi1",
        Verdict.WAITS,
        ("aten::copy_", "aten::_copy_from"),
        what="of the first generation widens int64 again on the host in eager mode too, so even a "
        "copy with non_blocking=True waits",
        instead="Copy torch.int32 to the host, and widen it there.",
        source=_EAGER + "ops/copy_from.cpp (_copy_from_d2h: IsInt64Supported)",
        dtypes=("int64",),
        mode="eager",
        cards=("gaudi1",),
        when="narrow_integers_to_host_non_blocking",
    ),
    Rule(
        "pinned-copy-blocks",
        Verdict.NOTED,
        ("aten::copy_", "aten::_copy_from"),
        what="ignores non_blocking=True for a source in pinned memory: the host waits for the copy",
        instead="Leave the source unpinned where the host must not wait for the transfer.",
        source=_EAGER + "ops/copy_from.cpp (Pipeline_Or_Direct_Copy)",
        mode="eager",
        releases=("1.24",),
        when="from_pinned_non_blocking",
    ),
)
"""What makes the host wait, and what makes shapes depend on values."""
