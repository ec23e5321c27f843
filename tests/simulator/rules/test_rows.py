"""Rows are well-formed, and name the operators that the programs about them really call."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from lightning_gaudi.simulator.rules import Rule, Verdict, document, rows_graphs
from lightning_gaudi.simulator.rules.table import RULES
from lightning_gaudi.tools.verify.programs import NOT_ON_CPU, PROGRAMS
from lightning_gaudi.tools.verify.programs.collectives import COLLECTIVES

CPU = torch.device("cpu")
BY_KEY = {row.key: row for row in RULES}
ON_CPU = sorted(set(PROGRAMS) - set(NOT_ON_CPU) - set(COLLECTIVES))
GLOO_LACKS = {
    "collective-int16-refused",
    "collective-complex-refused",
    "collective-float8-variants-refused",
    "collective-unsigned-refused",
    "reduce-premul-sum-refused",
    "reduce-average-lazy-refused",
    "average-of-integers-refused",
    "average-of-booleans",
    "odd-float8-all-to-all-single-refused",
    "coalesced-reduce-scatter-lost",
    "split-float8-all-to-all-refused",
    "recv-from-any-refused",
}
"""What gloo on one rank cannot do either."""


def _called(provocation: object) -> set[str]:
    """The operators that a program calls on the CPU, those within others too."""
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        warnings.simplefilter("ignore")
        provocation(CPU)
    return {event.name for event in profiler.events() if "::" in event.name}


def _base(operator: str) -> str:
    return operator.partition(".")[0]


def test_every_row_has_a_provocation_and_a_key_of_its_own() -> None:
    assert len(BY_KEY) == len(RULES)
    captured = {row.key for row in rows_graphs.ROWS}  # tests/simulator/test_hpu_graphs_checks.py
    assert set(BY_KEY) - captured == set(PROGRAMS)


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.key)
def test_rows_are_well_formed(row: Rule) -> None:
    assert row.key == row.key.lower().replace("_", "-").replace(" ", "-")
    assert row.operators
    assert row.source
    assert not row.what.endswith(".")
    assert row.instead.endswith(".")
    assert all(isinstance(getattr(torch, name, None), torch.dtype) for name in row.dtypes)
    assert row.mode in (None, "lazy", "eager")
    assert set(row.cards) <= {"gaudi1", "gaudi2", "gaudi3"}
    assert set(row.releases) <= {"1.20", "1.22", "1.24"}


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.key)
def test_operators_exist_and_reach_a_backend(row: Rule) -> None:
    for operator in row.operators:
        if not operator.startswith("aten::"):
            continue
        name, _, overload = operator.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name)
        overloads = [overload] if overload else packet.overloads()
        names = [f"aten::{name}" + ("" if one == "default" else f".{one}") for one in overloads]
        # What only torch composes is taken apart before a backend sees it.
        assert not all(
            torch._C._dispatch_has_kernel_for_dispatch_key(one, "CompositeImplicitAutograd")
            for one in names
        ), operator


@pytest.mark.parametrize("key", ON_CPU)
def test_provocations_call_what_their_row_names(key: str) -> None:
    called = {_base(name) for name in _called(PROGRAMS[key])}
    operators = {_base(name) for name in BY_KEY[key].operators}

    assert operators == {"*"} or operators & called or "tag::" in min(operators), sorted(called)


def test_rows_of_one_operator_do_not_repeat_each_other() -> None:
    seen: dict[tuple[object, ...], str] = {}
    for row in RULES:
        if row.verdict is Verdict.NOTED or row in rows_graphs.ROWS:
            continue
        for operator in row.operators:
            for dtype in row.dtypes or ("",):
                met = (operator, row.verdict, dtype, row.mode, row.cards, row.releases, row.when)
                assert met not in seen, (row.key, seen[met])
                seen[met] = row.key


def test_collectives_run_on_gloo_where_it_has_them(tmp_path: Path) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        for key in sorted(set(COLLECTIVES) - GLOO_LACKS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                COLLECTIVES[key](CPU)
    finally:
        dist.destroy_process_group()


def test_the_document_is_the_table_s() -> None:
    text = "run `python -m lightning_gaudi.simulator.rules.document`"
    assert document.PATH.read_text() == document.markdown(), text
