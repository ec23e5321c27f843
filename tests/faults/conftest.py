"""Each test of a fault names its row, says what it measured, and is run by `make faults`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.attack_programs import attack, oldest_lightning
from tests.faults.rows import FAULTS, Table

__all__ = ["attack", "oldest_lightning"]

_FOLDER = Path(__file__).parent


def _row_of(item: pytest.Item) -> int:
    """A file is called `test_07_malicious_pickle.py`."""
    found = re.match(r"test_(\d\d)_", item.path.name)
    assert found is not None, item.path
    assert int(found[1]) in FAULTS, item.path
    return int(found[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Call it with what was measured, in a few words; it comes into the table."""
    row = _row_of(request.node)
    return lambda figure: request.node.user_properties.append(("fault", (row, figure)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table, has_any = Table(), False
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            row = re.search(r"tests/faults/test_(\d\d)_", report.nodeid)
            if row is None:
                continue
            has_any = True
            if outcome != "passed":
                table.fail(int(row[1]))
            for name, value in report.user_properties:
                if name == "fault" and report.when == "call":
                    table.add(*value)
    if has_any:
        terminalreporter.section("faults")
        for line in table.lines():
            terminalreporter.write_line(line)
