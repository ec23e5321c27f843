"""How findings are shown, and what becomes of a check that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lightning_gaudi.tools.doctor import Options, diagnose, diagnosis
from lightning_gaudi.tools.doctor.findings import (
    Finding,
    Level,
    Report,
    error,
    from_message,
    note,
    ok,
    table,
    warning,
)
from lightning_gaudi.tools.doctor.machine import Machine
from tests.helpers.recorded import gaudi2_server, laptop

FINDINGS = [
    ok("python", "3.11"),
    note("cards", "no Gaudi here"),
    error("driver", "is old", "Install `driver`."),
    warning("TMPDIR", "is full", "Free some."),
]


def test_the_worst_comes_first_each_with_its_fix() -> None:
    assert table(Report(FINDINGS, {"python": "3.11", "variable PT_X": "1"})) == (
        "error    driver  is old\n"
        "                 -> Install `driver`.\n"
        "warning  TMPDIR  is full\n"
        "                 -> Free some.\n"
        "note     cards   no Gaudi here\n"
        "ok       python  3.11\n"
        "\n"
        "1 error, 1 warning, 1 note; 1 ok\n"
        "\n"
        "PT_X=1"
    )


def test_lines_are_short_and_commands_stay_whole() -> None:
    command = "sudo-sysctl-" + "x" * 90
    text = table(Report([error("hugepages", "few " * 60, f"Run {command} as root")]))
    lines = text.splitlines()
    assert any(command in line for line in lines)
    assert all(len(line) <= 100 for line in lines if command not in line)


def test_a_report_survives_json() -> None:
    where = Finding(Level.ERROR, "a", "b", "c", ("host",))
    report = Report([where, *FINDINGS], {"driver": "1.24.0"})
    data = json.loads(json.dumps(report.as_json()))
    assert [each["level"] for each in data["findings"][:2]] == ["error", "error"]
    assert data["status"] == 1
    again = Report.from_json(data)
    assert again.facts == report.facts
    assert set(again.findings) == set(report.findings)


def test_an_error_of_this_package_is_taken_apart() -> None:
    message = "X=3 is no card. Set it to 1 or 2. Unset it for all."
    found = from_message(Level.ERROR, "cards", message)
    assert (found.found, found.fix) == ("X=3 is no card", "Set it to 1 or 2. Unset it for all.")


def test_only_an_error_makes_the_status_1() -> None:
    assert Report(FINDINGS).status == 1
    assert Report([each for each in FINDINGS if each.level is not Level.ERROR]).status == 0


def test_every_error_and_warning_of_a_broken_server_says_what_to_do() -> None:
    machine = gaudi2_server()
    machine.packages |= {"torch": "2.13.0", "lightning": "2.6.5", "deepspeed": "0.16"}
    machine.commands.clear()
    machine.environment = {
        **{"PT_HPU_LAZY_MODE": "3", "PT_HPU_LAZYMODE": "1", "TMPDIR": "/nowhere"},
        **{"HABANA_VISIBLE_MODULES": "all", "PT_COMPILE_ONLY_MODE": "1", "MASTER_PORT": "x"},
    }
    report = diagnose(Options(interface="ib0", checkpoints="/proc"), machine)
    wrong = [each for each in report.findings if each.level in (Level.ERROR, Level.WARNING)]
    assert len({each.area for each in wrong}) >= 9
    assert all(each.fix for each in wrong)
    assert not [each for each in wrong if each.area == "doctor"]


def test_facts_are_versions_and_settings() -> None:
    facts = diagnosis.facts(gaudi2_server())
    assert facts["cards"] == "8 x HL-225"
    assert facts["driver"] == "1.23.0-2eae87a"
    assert facts["firmware SPI"].startswith("1.23.0-fw")
    assert facts["package habana-torch-plugin"] == "1.23.0.695"
    assert facts["variable HABANA_LOGS"] == "/var/log/habana_logs/"
    assert "driver" not in diagnosis.facts(laptop())


def test_a_check_that_fails_is_a_finding_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_nothing(machine: Machine) -> Iterator[Finding]:
        yield from ()
        raise KeyError("x")

    monkeypatch.setattr(diagnosis, "CHECKS", (check_nothing, *diagnosis.CHECKS))
    report = diagnose(machine=laptop())
    (found,) = [each for each in report.findings if each.area == "doctor"]
    assert found.level is Level.ERROR
    assert "check_nothing failed: KeyError: 'x'" in found.found
    assert len(report.findings) > 5
