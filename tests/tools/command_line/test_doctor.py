"""`lightning-gaudi doctor`, as typed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from lightning_gaudi.tools.command_line import main
from tests.helpers.process import run
from tests.helpers.recorded import DRIVER, FIRMWARE, smi_csv, smi_list

DOCTOR = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "doctor"]


def test_a_laptop_is_told_what_it_has_and_torch_is_not_imported() -> None:
    source = """
        import sys
        from lightning_gaudi.tools.command_line import main
        status = main(["doctor"])
        print("torch" in sys.modules, "lightning" in sys.modules, status)
    """
    env = {"LIGHTNING_GAUDI_SIMULATE": None, "PATH": "/nowhere"}
    result = run([sys.executable, "-c", "if True:" + source], env=env)
    assert "note     cards" in result.stdout
    assert "no Gaudi here (there is no hl-smi on the PATH" in result.stdout
    assert "\033" not in result.stdout
    assert result.stdout.endswith("False False 0\n")


def test_who_reads_a_line_and_ends_gets_no_traceback() -> None:
    # The reading end is closed before the doctor, which looks around for a while, says anything.
    script = 'set -o pipefail; "$@" | true'
    result = run(
        ["bash", "-c", script, "bash", *DOCTOR],
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        check=False,
    )
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.slow
def test_simulated_cards_are_asked_and_called_simulated() -> None:
    result = run([*DOCTOR, "--json"], env={"LIGHTNING_GAUDI_SIMULATE": "8"})
    report = json.loads(result.stdout)
    found = {each["area"]: each["found"] for each in report["findings"]}
    assert found["cards"].startswith("simulated: 8 of gaudi2")
    assert found["mode"].endswith("8 cards for torch")
    assert report["facts"]["variable LIGHTNING_GAUDI_SIMULATE"] == "8"
    assert (report["status"], result.returncode) == (0, 0)


def test_an_error_makes_the_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTNING_GAUDI_SIMULATE")
    assert main(["doctor", "--interface", "no-such-interface"]) == 1
    said = capsys.readouterr().out
    assert "error    interface" in said
    assert "there is no no-such-interface" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "'70000' is no port; give a number from 1 to 65535"),
        (["--timeout", "-1"], "'-1' is no number of seconds above 0"),
        (["--timeout", "5"], "--timeout needs --hosts"),
        (["--hosts"], "--hosts needs what you start ranks with after --"),
        (["--", "mpirun", "-np", "2"], "mpirun -np 2 after -- needs --hosts"),
        (["--hsots"], "did you mean --hosts?"),
    ],
)
def test_what_cannot_be_meant_is_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["doctor", *words])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_launcher_that_is_not_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--hosts", "--", "no-such-launcher", "-np", "2"]) == 2
    assert "no-such-launcher does not start: No such file" in capsys.readouterr().err


def test_hl_smi_is_asked_as_it_is_documented(tmp_path: Path) -> None:
    # It answers the words of the vendor's page alone.
    smi = tmp_path / "hl-smi"
    query = "-Q index,module_id,name,driver_version,memory.total,memory.used -f csv,noheader"
    smi.write_text(
        f"""#!/bin/sh
        case "$*" in
        "{query}") cat <<'END'
{smi_csv().text}END
        ;;
        -L) cat <<'END'
{smi_list().text}END
        ;;
        *) echo "unknown option: $*" >&2; exit 1 ;;
        esac
        """
    )
    smi.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {"LIGHTNING_GAUDI_SIMULATE": None, "PATH": path}
    report = json.loads(run([*DOCTOR, "--json"], env=env, check=False).stdout)
    found = {each["area"]: each["found"] for each in report["findings"]}
    assert found["cards"] == "8 x HL-225, 96 GiB"
    assert found["firmware"].startswith(f"one on all cards: SPI {FIRMWARE}")
    assert report["facts"]["driver"] == DRIVER
