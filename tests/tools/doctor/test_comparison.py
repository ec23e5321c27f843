"""What several servers' reports say together."""

from __future__ import annotations

from lightning_gaudi.tools.doctor import comparison
from lightning_gaudi.tools.doctor.findings import Finding, Level, Report, note, ok

COMMON = {"driver": "1.24.0", "package torch": "2.10.0"}


def _process(host: str, rank: int, facts: dict[str, str], *findings: Finding) -> comparison.Process:
    return comparison.Process(host, rank, 2, bool(findings), Report(list(findings), facts))


def test_servers_that_agree_are_one_line() -> None:
    processes = [_process("a", 0, COMMON, ok("x", "y")), _process("b", 1, COMMON, ok("x", "y"))]
    report = comparison.merge(processes)
    *_, last = report.findings
    assert last == ok("hosts", "2 processes on a, b have the same 2 versions and settings")
    assert report.findings[0] == ok("x", "y")
    assert (report.facts, report.status) == (COMMON, 0)


def test_one_server_is_compared_with_none() -> None:
    assert comparison.merge([_process("a", 0, COMMON)]).findings == []


def test_another_driver_is_an_error_that_names_both() -> None:
    processes = [
        _process("a", 0, COMMON),
        _process("b", 1, COMMON | {"driver": "1.23.0"}),
        _process("c", 2, COMMON),
    ]
    (found,) = comparison.compare(processes)
    assert found.level is Level.ERROR
    assert found.found == "driver differs: 1.24.0 on a, c; 1.23.0 on b"
    assert comparison.merge(processes).facts == {"package torch": "2.10.0"}


def test_a_variable_that_does_not_reach_a_server_is_an_error() -> None:
    kernels = {"variable GC_KERNEL_PATH": "/usr/lib/x.so"}
    (found,) = comparison.compare([_process("a", 0, kernels), _process("b", 1, {})])
    assert found.level is Level.ERROR
    assert found.found == "GC_KERNEL_PATH differs: /usr/lib/x.so on a; not set on b"
    assert "mpirun -x GC_KERNEL_PATH" in found.fix


def test_a_variable_with_two_values_and_other_cards_are_warnings() -> None:
    first = {"variable PT_HPU_LAZY_MODE": "1", "cards": "8 x HL-225"}
    second = {"variable PT_HPU_LAZY_MODE": "0", "cards": "7 x HL-225"}
    found = comparison.compare([_process("a", 0, first), _process("b", 1, second)])
    assert [each.level for each in found] == [Level.WARNING, Level.WARNING]


def test_what_is_each_servers_own_may_differ() -> None:
    processes = [
        _process("a", 0, {"variable HABANA_VISIBLE_MODULES": "0,1"}),
        _process("b", 1, {"variable HABANA_VISIBLE_MODULES": "2,3"}),
        _process("b", 2, {"variable HLS_MODULE_ID": "3"}),
    ]
    assert not comparison.compare(processes)


def test_ranks_of_a_server_are_named_where_they_differ() -> None:
    processes = [_process("a", rank, {"python": f"3.1{rank // 3}"}) for rank in (2, 3)]
    (found,) = comparison.compare([*processes, _process("b", 4, {"python": "3.11"})])
    assert found.found == "python differs: 3.10 on rank 2 on a; 3.11 on rank 3 on a, b"


def test_a_finding_says_where_it_is_unless_it_is_everywhere() -> None:
    full, same = note("TMPDIR", "is full", "Free some."), ok("python", "3.11")
    processes = [_process("a", 0, {}, same), _process("b", 1, {}, full, same)]
    found = {each.area: each.where for each in comparison.merge(processes).findings}
    assert found == {"TMPDIR": ("b",), "python": (), "hosts": ()}
