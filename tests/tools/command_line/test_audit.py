"""What can be wrong with the words of `lightning-gaudi audit`; tests/tools/audit has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_gaudi.tools import command_line


def _fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as error:
        command_line.main(["audit", *words])
    assert error.value.code == 2
    return capsys.readouterr().err


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no command; write it after --, as in: lightning-gaudi audit" in _fails(capsys)


def test_an_unknown_option_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: --jsn; did you mean --json?" in _fails(
        capsys, "--jsn", "--", "true"
    )


@pytest.mark.parametrize("steps", ["3", "0", "-1"])
def test_too_few_steps_are_refused(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = _fails(capsys, "--steps", steps, "--", "true")
    assert f"--steps {steps} is too few: the first 3 set up" in said
    assert "Pass 4 or more." in said


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_in_no_folder_is_refused_before_anything_runs(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _fails(capsys, option, "/no/such/report", "--", "true")
    assert f"{option}: /no/such/report: there is no folder /no/such. Make it first." in said


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "--json", "s3://a/b", "--", "true"],
        ["audit", "--html", "s3://a/b", "--", "true"],
        ["plan", "--picture", "s3://a/b", "--", "true"],
        ["consolidate", ".", "s3://a/b"],
    ],
    ids=lambda words: f"{words[0]} {words[1]}",
)
def test_an_address_is_refused_where_a_file_is_written(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        command_line.main(words)
    assert "s3://a/b is an address. Name a file of this machine" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [("no-such-command", 127, "command not found"), ("/etc", 126, "Permission denied")],
)
def test_a_command_that_cannot_be_started_is_said_as_a_shell_does(
    command: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["audit", "--", command]) == status
    assert f"lightning-gaudi: {command}: {said}." in capsys.readouterr().err


def test_a_signal_of_the_command_is_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["audit", "--", "sh", "-c", "echo mine; kill -9 $$"]) == 137
    out = capfd.readouterr().out
    assert out.startswith("mine\n")
    assert "It failed: the command exited with 137, see above." in out
