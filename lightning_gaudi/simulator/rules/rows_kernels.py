"""Rules about the vendor's own fused operators, `hpu::...`, as the simulator's package has them."""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

_ATTENTION = ("hpu::sdpa_fwd", "hpu::sdpa_recomp_fwd")
ATTENTION = (*_ATTENTION, "hpu::fp8_sdpa_fwd", "hpu::fp8_sdpa_recomp_fwd")
"""The operators of fused attention."""
_NF4 = ("hpu::dequantize_nf4",)
_TEST = "bridge 1.19.0 tests/pytest_working/any_mode/FusedSDPA/test_hpu_sdpa.py"
_INSTEAD = "Call F.scaled_dot_product_attention, which lightning_gaudi composes of operators there."

ROWS: tuple[Rule, ...] = (
    Rule(
        "fused-attention-refused-on-gaudi1",
        Verdict.REFUSED,
        ATTENTION,
        what="of the first generation does not have FusedSDPA",
        instead=_INSTEAD,
        source=_TEST + " (is_gaudi1: not supported)",
        cards=("gaudi1",),
    ),
    Rule(
        "fused-attention-in-float16",
        Verdict.UNDEFINED,
        _ATTENTION,
        what="is not known to have FusedSDPA in float16: the vendor tests float32 and bfloat16",
        instead="Use bfloat16, or " + _INSTEAD[0].lower() + _INSTEAD[1:],
        source=_TEST + " (dtype)",
        dtypes=("float16",),
        cards=("gaudi2", "gaudi3"),
    ),
    Rule(
        "nf4-refused-on-gaudi1",
        Verdict.REFUSED,
        _NF4,
        what="of the first generation does not have weights in NF4",
        instead="Train LoRA beside weights in bfloat16 there.",
        source="optimum-habana (1d8504c6c) tests/test_bnb_qlora.py (skipped on gaudi1)",
        cards=("gaudi1",),
    ),
    Rule(
        "nf4-in-float16",
        Verdict.UNDEFINED,
        _NF4,
        what="is not known to make NF4 into float16: the vendor tests float32 and bfloat16",
        instead="Compute in bfloat16: bnb_4bit_compute_dtype=torch.bfloat16 in transformers, "
        "dtype=torch.bfloat16 in Lightning's BitsandbytesPrecision.",
        source="bitsandbytes 0.50 tests/helpers.py (is_supported_on_hpu); bridge, a copy of 2025, "
        "tests/pytest_working/any_mode/test_hpu_dequantize_nf4.py",
        dtypes=("float16",),
        cards=("gaudi2", "gaudi3"),
    ),
)
"""What they are not for; the simulated kernels themselves would compute it."""
