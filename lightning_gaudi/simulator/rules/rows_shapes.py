"""Results whose shape, or whose value, the host has to wait for."""

from __future__ import annotations

from lightning_gaudi.simulator.rules.rule import Rule, Verdict

ROWS: tuple[Rule, ...] = (
    Rule(
        key="dynamic-shape",
        verdict=Verdict.DYNAMIC,
        operators=("tag::dynamic_output_shape",),
        what="waits for the size of the result and compiles anew for every new one",
        instead="Keep shapes fixed: multiply by a mask, or use torch.where.",
        source="torch's tags of operators (aten/src/ATen/native/tags.yaml)",
    ),
    Rule(
        key="mask-index",
        verdict=Verdict.DYNAMIC,
        operators=(
            *("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
            *("aten::_unsafe_index", "aten::_unsafe_index_put"),
        ),
        when="mask_among_indices",
        what="waits for the number of elements that the mask selects and compiles anew for every "
        "new one",
        instead="Keep shapes fixed: torch.where(mask, value, x) or x.masked_fill(mask, value).",
        source="torch's tags of operators (aten/src/ATen/native/tags.yaml)",
    ),
    Rule(
        key="value-on-host",
        verdict=Verdict.WAITS,
        operators=("tag::data_dependent_output",),
        what="makes the host wait for the value",
        instead="Keep values on the device, and read them once in many steps.",
        source="torch's tags of operators (aten/src/ATen/native/tags.yaml)",
    ),
)
