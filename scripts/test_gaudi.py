"""Run the contract tests on the cards of this server, and gather what a report of them needs.

    python3 scripts/test_gaudi.py

It uses the Python that runs it, with the vendor's torch that is installed there, and installs
nothing. It begins with `lightning-gaudi verify --quick`, whose measurements go into `card.json`
beside the report. The tests run in eager mode, then in lazy mode where the installed torch has it.
Everything they say goes into one text file as well, with the versions of what is installed.

The status is 0 if every test passed, 1 if one failed, 2 if they could not run at all.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

_REPOSITORY = Path(__file__).resolve().parents[1]
_NEEDED = {
    "torch": "the vendor's torch: use the Python of the server's environment or container",
    "habana_frameworks": "the vendor's package: use the Python of the server's environment or "
    "container (docs/how-to/on-a-gaudi.md)",
    "lightning_gaudi": "this package: install it beside the vendor's torch "
    "(docs/how-to/on-a-gaudi.md)",
    "lightning": "python3 -m pip install lightning "
    "(docs/how-to/on-a-gaudi.md: first with --dry-run)",
    "pytest": "python3 -m pip install pytest",
    "pytest_timeout": "python3 -m pip install pytest-timeout",
}
_PACKAGES = (
    *("torch", "habana-torch-plugin", "habana-torch-dataloader", "habana_gpu_migration"),
    *("lightning", "pytorch-lightning", "lightning-gaudi", "lightning-habana", "torchmetrics"),
    *("transformers", "accelerate", "peft", "trl", "numpy", "deepspeed", "pytest"),
)
_TIMEOUT_S = 900  # of one test; the first use of an operation compiles it

_Say = Callable[[str], None]


def main() -> int:
    """Check that the tests can run here, run them, and say where the report is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--report", type=Path, default=_REPOSITORY / "runs" / "gaudi-report.txt", metavar="FILE"
    )
    parser.add_argument("--mode", choices=("eager", "lazy", "both"), default="both")
    parser.add_argument(
        "--simulator", action="store_true", help="the same tests on simulated cards"
    )
    parser.add_argument("--skip-verify", action="store_true", help="only the tests")
    options, pytest_args = parser.parse_known_args()
    env = _environment(is_simulated=options.simulator)
    if reason := _why_not(env, is_simulated=options.simulator):
        print(f"test-gaudi: {reason}", file=sys.stderr)
        return 2
    options.report.parent.mkdir(parents=True, exist_ok=True)
    with options.report.open("w") as report:
        say = _sayer(report)
        _describe(env, say)
        if not options.skip_verify:
            _verify(options.report.with_name("card.json"), env, say)
        modes = _modes(options.mode, say, is_simulated=options.simulator)
        results = {mode: _run_tests(mode, env, pytest_args, say) for mode in modes}
        for mode, status in results.items():
            say(f"{mode} mode: {'passed' if status == 0 else f'failed (pytest status {status})'}")
    print(f"test-gaudi: everything above is in {options.report}")
    return int(any(results.values()))


def _environment(*, is_simulated: bool) -> dict[str, str]:
    """Gives the environment of the tests: this one's, without what a launcher or an import left."""
    env = dict(os.environ)
    for name in ("LIGHTNING_GAUDI_SIMULATE", "PT_HPU_LAZY_MODE", "HLS_MODULE_ID"):
        env.pop(name, None)
    if is_simulated:
        env["LIGHTNING_GAUDI_SIMULATE"] = "8"
    env["LIGHTNING_GAUDI_TEST_ON"] = "simulator" if is_simulated else "gaudi"
    return env


def _why_not(env: dict[str, str], *, is_simulated: bool) -> str | None:
    """Returns why the tests cannot run here, in one line; None if they can."""
    for name, remedy in _NEEDED.items():
        if name == "habana_frameworks" and is_simulated:
            continue
        if importlib.util.find_spec(name) is None:
            return (
                f"no Gaudi environment here: {sys.executable} has no package {name!r}. "
                f"Needed is {remedy}. On simulated cards the same tests run with `make test`."
            )
    source = """if True:
        import torch
        from lightning_gaudi import vendor
        print(vendor.device_count() or vendor.unavailable_reason())
    """
    result = _output([sys.executable, "-c", source], env)
    last = result.splitlines()[-1] if result else "no answer"
    if last.isdigit():
        return None
    return (
        f"no Gaudi here: {last}. `hl-smi` shows the cards that the driver knows; in a container, "
        "start it with --runtime=habana. On simulated cards the same tests run with `make test`."
    )


def _output(command: list[str], env: dict[str, str], timeout_s: float = 300) -> str:
    """Returns what a command prints, errors included; the reason if it cannot be run."""
    try:
        result = subprocess.run(
            command,
            env=env,
            cwd=_REPOSITORY,
            timeout=timeout_s,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return result.stdout.strip()


def _sayer(report: TextIO) -> _Say:
    """Print a line and keep it; names of this user and machine stay out of the report."""
    private = {str(Path.home()): "~", socket.gethostname(): "<host>"}

    def say(line: str) -> None:
        print(line, flush=True)
        for word, replacement in private.items():
            if len(word) > 3:
                line = line.replace(word, replacement)
        report.write(line + "\n")

    return say


def _describe(env: dict[str, str], say: _Say) -> None:
    """Versions, and what the doctor says of cards, software and settings."""
    say(f"lightning-gaudi contract tests, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC")
    say(f"python {platform.python_version()}, {platform.platform()}")
    for name in _PACKAGES:
        try:
            say(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if shutil.which("git"):
        say(f"commit {_output(['git', 'rev-parse', 'HEAD'], env)}")
    # It ends with the settings, without secrets.
    say(_output([sys.executable, "-m", "lightning_gaudi.tools.command_line", "doctor"], env))


def _verify(path: Path, env: dict[str, str], say: _Say) -> None:
    """Compares the card with the tables; what differs there fails no test."""
    say("--- lightning-gaudi verify --quick")
    command = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "verify", "--quick"]
    say(_output([*command, "--output", str(path)], env, timeout_s=1800))


def _modes(asked: str, say: _Say, *, is_simulated: bool) -> list[str]:
    """Returns the modes to test; the vendor's lazy mode needs its own build of torch."""
    if asked != "both":
        return [asked]
    version = importlib.metadata.version("torch")
    # 2.5.1a0+git1b3f8ae, 2.9.0+hpu.1.23.0.695; stock torch is 2.9.0, 2.9.0+cpu or 2.9.0+cu128.
    if is_simulated or re.search("hpu|git", version.partition("+")[2]):
        return ["eager", "lazy"]
    say(f"lazy mode: left out; torch {version} is not the vendor's own build, which it needs")
    return ["eager"]


def _run_tests(mode: str, env: dict[str, str], args: list[str], say: _Say) -> int:
    """Run pytest in one mode and return its status."""
    say(f"--- {mode} mode")
    command = [sys.executable, "-m", "pytest", "tests/contract", "-p", "no:cacheprovider"]
    # The vendor's packages and their dependencies may warn; that is no failure of the contract.
    command += ["-o", f"timeout={_TIMEOUT_S}", "-o", "filterwarnings=default", "-v", "--tb=short"]
    process = subprocess.Popen(
        [*command, *args],
        env=env | {"PT_HPU_LAZY_MODE": "1" if mode == "lazy" else "0"},
        cwd=_REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        say(line.rstrip("\n"))
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
