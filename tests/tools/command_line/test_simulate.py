"""`lightning-gaudi simulate`."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lightning_gaudi import __version__
from lightning_gaudi.simulator import settings
from tests.helpers.process import environment, run

_CLI = [sys.executable, "-m", "lightning_gaudi.tools.command_line"]
_SIMULATE = [*_CLI, "simulate"]
_UNSET = {"LIGHTNING_GAUDI_SIMULATE": None}


def _run(*words, env=None, check=True):
    return run([*_SIMULATE, *words], env=_UNSET | (env or {}), check=check)


@pytest.mark.slow
def test_the_command_sees_the_server_and_may_import_the_vendor_first():
    source = """if True:
        import habana_frameworks.torch.core as htcore
        htcore.mark_step()
        import torch
        print(torch.hpu.device_count(), torch.hpu.get_device_name())
    """
    result = _run("--cards", "4", "--card", "gaudi1", "--", sys.executable, "-c", source)
    assert result.stdout == "4 GAUDI\n"


_ASKED = (settings.SIMULATE, settings.CARD, settings.RELEASE, settings.RULES)
_PRINT_ASKED = f"import os; print(*(os.environ[name] for name in {_ASKED}))"


def test_one_gaudi_2_of_the_newest_release_that_warns_by_default():
    env = dict.fromkeys(_ASKED)
    result = _run("--", sys.executable, "-c", _PRINT_ASKED, env=env)
    assert result.stdout == "1 gaudi2 1.24 warn\n"
    assert result.stderr == ""


def test_release_and_rules_are_asked_for_by_option_or_environment():
    env = {settings.RELEASE: "1.20", settings.RULES: "off"}
    command = ["--", sys.executable, "-c", _PRINT_ASKED]
    assert _run(*command, env=env).stdout == "1 gaudi2 1.20 off\n"
    options = ["--release", "1.22", "--rules", "error"]
    assert _run(*options, *command, env=env).stdout == "1 gaudi2 1.22 error\n"


@pytest.mark.slow
def test_what_the_command_starts_shares_the_cards_of_one_server():
    source = """if True:
        import subprocess, sys  # a launcher without torch, as mpirun
        use = "import torch; torch.ones(1, device='hpu'); print('has a card', flush=True); input()"
        rank = [sys.executable, "-c", use]
        first = subprocess.Popen(rank, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(first.stdout.readline().decode(), end="")
        second = subprocess.run(rank, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        print(f"module 0 by process {first.pid}." in second.stderr)
        first.communicate(b"\\n")
    """
    result = _run("--", sys.executable, "-c", source)
    assert result.stdout == "has a card\nTrue\n"


def test_python_path_is_kept(tmp_path):
    source = "import os; print(os.environ['PYTHONPATH'])"
    result = _run("--", sys.executable, "-c", source, env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout == f"{tmp_path}{os.pathsep}{settings.STAND_IN}\n"


def test_the_command_s_own_options_and_dashes_reach_it():
    source = "import sys; print(sys.argv[1:])"
    result = _run("--", sys.executable, "-c", source, "--cards", "9", "--", "-h")
    assert result.stdout == "['--cards', '9', '--', '-h']\n"


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_passed_on(status):
    source = f"raise SystemExit({status})"
    assert _run("--", sys.executable, "-c", source, check=False).returncode == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command(number):
    source = "import time; print('ready', flush=True); time.sleep(60)"
    command = [*_SIMULATE, "--", sys.executable, "-c", source]
    process = subprocess.Popen(
        command,
        env=environment(_UNSET),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    start = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert time.monotonic() - start < 30


def test_the_command_is_not_left_with_python_s_signal_settings():
    result = _run("--", "sh", "-c", "yes | head -n 1; echo ended")
    assert result.stdout == "y\nended\n"
    assert result.stderr == ""  # with SIGPIPE ignored, `yes` complains about a broken pipe


def test_a_missing_command_is_one_line_and_127():
    result = _run("--", "no-such-command", check=False)
    assert result.returncode == 127
    assert result.stderr == "lightning-gaudi: no-such-command: command not found.\n"


def test_a_command_that_cannot_run_is_one_line_and_126(tmp_path):
    (tmp_path / "file").touch()
    result = _run("--", str(tmp_path / "file"), check=False)
    assert result.returncode == 126
    assert result.stderr == f"lightning-gaudi: {tmp_path}/file: Permission denied.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command; write it after --, as in: lightning-gaudi simulate --cards 1"),
        (["--"], "no command; write it after --"),
        (["python", "x.py"], "unrecognized arguments: python x.py; a command is written after --"),
        (["--cards", "9", "--", "true"], "argument --cards: invalid choice: 9"),
        (["--cards", "0", "--", "true"], "argument --cards: invalid choice: 0"),
        (["--cards", "two", "--", "true"], "argument --cards: invalid int value: 'two'"),
        (["--card", "gaudi4", "--", "true"], "argument --card: invalid choice: 'gaudi4'"),
        (["--release", "1.19", "--", "true"], "argument --release: invalid choice: '1.19'"),
        (["--rules", "loud", "--", "true"], "argument --rules: invalid choice: 'loud'"),
    ],
)
def test_wrong_usage_shows_the_usage(words, message):
    result = _run(*words, check=False)
    assert result.returncode == 2
    assert "usage: lightning-gaudi simulate [OPTION ...] -- COMMAND" in result.stderr
    assert message in result.stderr


def test_a_real_vendor_package_beside_is_one_line_and_2(tmp_path):
    (tmp_path / "habana_frameworks").mkdir()
    (tmp_path / "habana_frameworks" / "__init__.py").touch()
    result = _run("--", "true", env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert (
        "`lightning-gaudi simulate` asks for the simulated HPU, but the vendor's" in result.stderr
    )
    assert str(tmp_path / "habana_frameworks") in result.stderr


def test_a_missing_compiler_is_one_line_and_2_before_the_command_runs(tmp_path):
    env = {"PATH": str(tmp_path), "LIGHTNING_GAUDI_CACHE_DIR": str(tmp_path), "CXX": None}
    result = _run("--", sys.executable, "-c", "print('ran')", env=env, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "no C++ compiler was found. Install one" in result.stderr


def test_starting_does_not_import_torch():
    source = """
import os, sys
from lightning_gaudi.tools import command_line
os.execvpe = lambda file, words, env: sys.exit(f"torch imported: {'torch' in sys.modules}")
command_line.main(["simulate", "--", "true"])
"""
    result = run([sys.executable, "-c", source], env=_UNSET, check=False)
    assert result.stderr == "torch imported: False\n"


def test_help_and_version():
    shown = " ".join(run([*_SIMULATE, "--help"], env=_UNSET).stdout.split())
    for word in ("--cards N", "--card {gaudi1,gaudi2,gaudi3}", "example:", "96 GiB (gaudi2)"):
        assert word in shown
    assert "simulate" in run([*_CLI, "--help"], env=_UNSET).stdout
    assert run([*_CLI, "--version"], env=_UNSET).stdout == f"lightning-gaudi {__version__}\n"
