"""Texts of others that would move a terminal's cursor, or forge a line."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_gaudi.tools import command_line
from lightning_gaudi.tools.audit import formatting, text
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.command_line import catalog, consolidate, simulate
from lightning_gaudi.tools.doctor import hosts
from lightning_gaudi.tools.doctor.findings import Report, error, table
from recipes.common import entrypoint, parser, sections

EVIL = "x\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u2028checkpoint verified"
FORBIDDEN = {"\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2028"}


def _is_clean(shown: str) -> bool:
    return not FORBIDDEN & set(shown) and "checkpoint verified" in shown


def test_reports_are_printable() -> None:
    report = Report([error("x", EVIL, EVIL)], {"variable PT_X": EVIL})
    audit = Audit(command=(EVIL, f"{EVIL}\n{EVIL}"), program_status=1, records=[])
    for shown in (
        table(report),
        formatting.command(audit),
        text.render(audit, []),
        sections.table([sections.section(EVIL, [(EVIL, EVIL)])]),
    ):
        assert _is_clean(shown)
    assert "\n" not in formatting.command(audit)


def test_what_a_launcher_has_said_is_printable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = hosts._Answers(status=1, said=f"{EVIL}\n{EVIL}")
    monkeypatch.setattr(hosts, "_ask", lambda *_: answers)
    shown = table(hosts.diagnose_hosts(["srun", EVIL], [], 1.0))
    assert _is_clean(shown)
    assert _is_clean(capsys.readouterr().err)


def test_errors_are_printable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise catalog.UsageError(EVIL)

    monkeypatch.setattr(command_line, "_run", fail)
    assert command_line.main(["x"]) == 2
    assert _is_clean(capsys.readouterr().err)
    assert simulate.fail(3, EVIL) == 3
    assert _is_clean(capsys.readouterr().err)
    with pytest.raises(SystemExit):
        entrypoint._exit("program", EVIL)
    assert _is_clean(capsys.readouterr().err)
    asked: Any = SimpleNamespace(exit_on_error=True, prog="x", _actions=[])
    with pytest.raises(SystemExit):
        parser.RecipeParser.error(asked, f"Key {EVIL} is unknown")
    assert _is_clean(capsys.readouterr().err)

    def refuse(*_: Any) -> None:
        raise ValueError(EVIL)

    monkeypatch.setattr(consolidate, "consolidate", refuse, raising=False)
    monkeypatch.setattr(consolidate, "_check_installed", refuse)
    assert consolidate._run(argparse.Namespace(folder=None, output=None), []) == 2
    assert _is_clean(capsys.readouterr().err)
