"""Rules about collectives over HCCL: which types and reductions it takes, and what is cast.

HCCL itself moves and reduces float32, bfloat16, float16 and int32. The bridge casts some other
types to float32 and back, passes some on as they are, and looks every type up in a table first.
"""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_BASE = (
    "bridge 1.24.0 python_packages/habana_frameworks/torch/distributed/hccl/"
    "process_group_hccl_base.cpp"
)
_TYPES = "bridge 1.24.0 backend/helpers/collective_utils.cpp"
_HCCL = (
    "HCCL C APIs, https://docs.habana.ai/en/latest/API_Reference_Guides/HCCL_APIs/C_API.html "
    "(hcclDataType_t, hcclRedOp_t)"
)
_REDUCTIONS = (
    "hccl::all_reduce",
    "hccl::reduce",
    "hccl::reduce_scatter",
    "hccl::reduce_scatter_tensor",
)
_LOOKED_UP = (
    *_REDUCTIONS,
    "hccl::all_gather",
    "hccl::all_gather_into_tensor",
    "hccl::all_to_all_single",
    "hccl::send",
    "hccl::recv",
    "hccl::gather",
    "hccl::scatter",
)

ROWS: tuple[Rule, ...] = (
    Rule(
        "integers-reduced-in-float32",
        Verdict.DEMOTED,
        ("hccl::all_reduce", "hccl::reduce"),
        what="reduces integers in float32: a value or sum beyond 2**24 is rounded",
        instead="Reduce on a gloo group of CPU tensors, or split the value in two smaller ones.",
        source=_BASE + " (allreduce, reduce)",
        dtypes=("int32", "int64"),
        when="beyond_float32_integers",
    ),
    Rule(
        "float64-reduced-in-float32",
        Verdict.DEMOTED,
        ("hccl::all_reduce", "hccl::reduce", "hccl::reduce_scatter_tensor"),
        what="reduces float64 in float32",
        instead="Reduce on a gloo group of CPU tensors what needs float64.",
        source=_BASE,
        dtypes=("float64",),
    ),
    Rule(
        "small-types-reduced-in-float32",
        Verdict.NOTED,
        ("hccl::all_reduce", "hccl::reduce"),
        what="casts bytes, booleans and float8 to float32 to reduce them, and back: a slower way",
        instead="Reduce float32 or bfloat16.",
        source=_BASE + " (allreduce, reduce)",
        dtypes=("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"),
    ),
    Rule(
        "collective-int16-refused",
        Verdict.REFUSED,
        _LOOKED_UP,
        what="has no collectives of int16 but broadcast and all_to_all and raises",
        instead="Convert to int32.",
        source=_TYPES + " (getHcclDataType)",
        dtypes=("int16",),
    ),
    Rule(
        "collective-complex-refused",
        Verdict.REFUSED,
        _LOOKED_UP,
        what="has no collectives of complex tensors and raises",
        instead="Send torch.view_as_real of them on a gloo group.",
        source=_TYPES + " (getHcclDataType)",
        dtypes=("complex32", "complex64", "complex128"),
    ),
    Rule(
        "collective-float8-variants-refused",
        Verdict.REFUSED,
        _LOOKED_UP,
        what="has no collectives of this type and raises",
        instead="Use torch.float8_e4m3fn or torch.float8_e5m2, or send a view as uint8.",
        source=_TYPES + " (getHCCLDataType)",
        dtypes=("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    ),
    Rule(
        "collective-unsigned-refused",
        Verdict.REFUSED,
        _LOOKED_UP,
        what="has no collectives of unsigned integers but uint8 and raises",
        instead="Use the signed type of twice the width.",
        source=_TYPES + " (getHcclDataType)",
        dtypes=("uint16", "uint32", "uint64"),
    ),
    Rule(
        "reduce-scatter-list-types-refused",
        Verdict.REFUSED,
        ("hccl::reduce_scatter",),
        what="reduces and scatters lists in their own type, which HCCL does not take",
        instead="Use reduce_scatter_tensor, which casts, or float32.",
        source=_BASE + " (reduce_scatter casts nothing); " + _HCCL,
        dtypes=(
            *("float64", "int64", "int8", "uint8", "bool"),
            *("float8_e4m3fn", "float8_e5m2"),
        ),
    ),
    Rule(
        "reduce-scatter-int64-refused",
        Verdict.REFUSED,
        ("hccl::reduce_scatter_tensor",),
        what="passes int64 to HCCL as it is, which does not take it",
        instead="Convert to int32 or float32.",
        source=_BASE + " (_reduce_scatter_base); " + _HCCL,
        dtypes=("int64",),
    ),
    Rule(
        "coalesced-reduce-scatter-lost",
        Verdict.DEMOTED,
        ("hccl::reduce_scatter_tensor_coalesced",),
        what="reduces a copy in float32 here and never writes it back: the output stays as it was",
        instead="Reduce float32, bfloat16 or float16, or call reduce_scatter_tensor on each.",
        source=_BASE + " (reduce_scatter_tensor_coalesced)",
        dtypes=(
            *("float64", "int8", "uint8", "bool"),
            *("float8_e4m3fn", "float8_e5m2"),
        ),
    ),
    Rule(
        "reduce-product-refused",
        Verdict.REFUSED,
        _REDUCTIONS,
        what="has no ReduceOp.PRODUCT: HCCL knows sum, minimum and maximum",
        instead="Gather and multiply, or exponentiate the sum of logarithms.",
        source=_HCCL,
        when="op_product",
    ),
    Rule(
        "reduce-bitwise-refused",
        Verdict.REFUSED,
        _REDUCTIONS,
        what="has no ReduceOp.BAND, BOR and BXOR and raises",
        instead="Use MIN, MAX of bool tensors for and, or; gather for the rest.",
        source=_TYPES + " (hcclOp)",
        when="op_bitwise",
    ),
    Rule(
        "reduce-premul-sum-refused",
        Verdict.REFUSED,
        _REDUCTIONS,
        what="has no ReduceOp.PREMUL_SUM and raises",
        instead="Multiply first. For FSDP2 call set_force_sum_reduction_for_comms(True).",
        source=_TYPES + " (hcclOp)",
        when="op_premul_sum",
    ),
    Rule(
        "reduce-average-lazy-refused",
        Verdict.REFUSED,
        _REDUCTIONS,
        what="has no ReduceOp.AVG in collectives that are part of a lazy graph and raises",
        instead="Use SUM and divide by the number of ranks.",
        source="bridge 1.24.0 habana_kernels/hccl_kernels.cpp (hcclOp)",
        mode="lazy",
        when="op_average_in_lazy_collective",
    ),
    Rule(
        "average-of-integers-refused",
        Verdict.REFUSED,
        ("hccl::reduce_scatter", "hccl::reduce_scatter_tensor"),
        what="divides the sum of integers in place, which fails: the result is no integer",
        instead="Convert to float32 first.",
        source=_BASE + " (reduce_scatter, _reduce_scatter_base: div_)",
        dtypes=("int32", "int64"),
        releases=("1.24",),
        when="op_average",
    ),
    Rule(
        "average-of-booleans",
        Verdict.NOTED,
        ("hccl::all_reduce", "hccl::reduce"),
        what="takes the average of booleans as their or; the simulator refuses it, as others do",
        instead="Use ReduceOp.MAX for or, or convert to float32 for the share.",
        source=_BASE + " (allreduce casts to float32, sums, divides, casts back)",
        dtypes=("bool",),
        releases=("1.24",),
        when="op_average",
    ),
    Rule(
        "odd-bytes-all-to-all-refused",
        Verdict.REFUSED,
        ("hccl::all_to_all",),
        what="exchanges pairs of bytes: an odd number of 1-byte elements in all is refused",
        instead="Pad by one element.",
        source=_TYPES + " (getCountDatatype); " + _BASE + " (alltoall)",
        dtypes=("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"),
        when="odd_number_of_elements",
    ),
    Rule(
        "split-float8-all-to-all-refused",
        Verdict.REFUSED,
        ("hccl::all_to_all_single",),
        what="counts split sizes in elements of one byte and moves as many of two: float8 would go "
        "astray",
        instead="Send tensor.view(torch.uint8), or equal parts without split sizes.",
        source=_BASE + " (alltoall_base); " + _TYPES + " (getCountDatatype)",
        dtypes=("float8_e4m3fn", "float8_e5m2"),
        when="split_sizes",
    ),
    Rule(
        "odd-float8-all-to-all-single-refused",
        Verdict.REFUSED,
        ("hccl::all_to_all_single",),
        what="exchanges pairs of bytes: an odd number of float8 elements in all is refused",
        instead="Pad by one element.",
        source=_TYPES + " (getCountDatatype); " + _BASE + " (alltoall_base)",
        dtypes=("float8_e4m3fn", "float8_e5m2"),
        when="odd_number_of_elements",
    ),
    Rule(
        "odd-bytes-padded",
        Verdict.NOTED,
        ("hccl::broadcast", "hccl::all_gather", "hccl::all_gather_into_tensor", "hccl::send"),
        what="resizes tensors of an odd number of 1-byte elements and waits before it undoes that",
        instead="Send an even number of elements.",
        source=_BASE + " (resizeOddTensor, restoreOddTensorsize)",
        dtypes=("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"),
        when="odd_number_of_elements",
    ),
    Rule(
        "all-gather-coalesced-refused",
        Verdict.REFUSED,
        ("hccl::all_gather_coalesced",),
        what="has no all_gather_coalesced and raises",
        instead="Call all_gather_into_tensor on each.",
        source=_BASE + " (allgather_coalesced)",
    ),
    Rule(
        "recv-from-any-refused",
        Verdict.REFUSED,
        ("hccl::recv_any_source",),
        what="cannot receive from whoever sends first and raises",
        instead="Name the source: recv(tensor, src=rank).",
        source=_BASE + " (recvAnysource)",
    ),
    Rule(
        "barrier-waits",
        Verdict.WAITS,
        ("hccl::barrier",),
        what="makes the hosts of all ranks meet and polls the store meanwhile",
        instead="Leave it out: collectives are ordered without it.",
        source=_BASE + " (hostBarrier)",
    ),
    Rule(
        "work-timeout-ignored",
        Verdict.NOTED,
        ("hccl::wait",),
        what="ignores the timeout of Work.wait and cannot abort: a missing rank hangs the others",
        instead="Watch the ranks from outside.",
        source=_BASE + " (CoalescedWorkHCCL::wait)",
    ),
)
"""What HCCL refuses, casts or waits for."""
