"""Adds `lightning-gaudi audit`, which runs a few steps of a program and says what would cost."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lightning_gaudi._core.processes import end_group
from lightning_gaudi.tools.audit import findings, page, text
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.audit.record import WARM_UP, environment, read_all
from lightning_gaudi.tools.command_line import simulate
from lightning_gaudi.tools.command_line.catalog import local_file

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLE = "lightning-gaudi audit --steps 20 -- python train.py"
_DEFAULT_STEPS = 20
_PATIENCE_SECONDS = 10
_DESCRIPTION = f"""\
Run the first steps of a program on simulated cards and say, line by line of its code, what
would cost on a Gaudi, worst first, and what to write instead. The program is any that trains
with torch: Lightning's Trainer or Fabric, the Trainer of transformers, a loop of its own. It is
ended after its steps, of which the first {WARM_UP} set up and are not judged."""
_EPILOG = f"""\
example:
  {_EXAMPLE}

What the command leaves running is ended with it.

exit status: 0 if nothing was found, 1 if something was, 2 if the audit could not be done (or
126 and 127, as a shell), and that of the program where it failed."""


_NOTHING_NOTED = (
    "no process of the command gave a card anything to do, so there is nothing to say of it. Does "
    "it choose another device? Ask for accelerator='hpu', or for tensors on device 'hpu'."
)


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `audit` command."""
    parser = subparsers.add_parser(
        "audit",
        help="run a few steps of a program, and say what in it would be slow on a Gaudi",
        usage="lightning-gaudi audit [OPTION ...] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    simulate.add_server_options(parser)
    parser.add_argument(
        "--steps",
        type=int,
        default=_DEFAULT_STEPS,
        metavar="N",
        help="end the program after N steps of its optimizer "
        f"(default {_DEFAULT_STEPS}, at least {WARM_UP + 1})",
    )
    parser.add_argument("--json", type=local_file, metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--html", type=local_file, metavar="FILE", help="write the report as one page with plots"
    )
    parser.set_defaults(run=_run, error=parser.error, hint="; a command is written after --")


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    _check(options, command)
    if (status := simulate.prepare("`lightning-gaudi audit`")) is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="lightning_gaudi_audit_") as folder:
        env = simulate.environment(options) | environment(folder, options.steps)
        try:
            program_status = _execute(command, env)
        except OSError as error:
            return simulate.not_started(command[0], error)
        audit = Audit(tuple(command), program_status, read_all(Path(folder)))
    return _report(options, audit)


def _check(options: argparse.Namespace, command: Sequence[str]) -> None:
    if not command:
        options.error(f"no command; write it after --, as in: {_EXAMPLE}")
    if options.steps <= WARM_UP:
        options.error(
            f"--steps {options.steps} is too few: the first {WARM_UP} set up, and are not judged. "
            f"Pass {WARM_UP + 1} or more."
        )


def _report(options: argparse.Namespace, audit: Audit) -> int:
    """Shows and writes what was found; returns the exit status."""
    if not audit.is_of_card and not audit.status:
        return simulate.fail(2, _NOTHING_NOTED)
    found = findings.find(audit)
    sys.stdout.write(text.render(audit, found))
    if options.json is not None:
        options.json.write_text(text.to_json(audit, found), "utf-8")
    if options.html is not None:
        options.html.write_text(page.render(audit, found), "utf-8")
    if audit.status or audit.missing_ranks:
        return audit.status or 2
    return 1 if found else 0


def _execute(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Runs the command to its end, ends what it leaves running, and returns its status.

    Raises:
        OSError: It cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _signals_passed_on() as started:
        # A session of its own makes the processes of the command a group that can be ended. But
        # Ctrl-C at the terminal then reaches this process alone, which passes it on.
        process = subprocess.Popen(command, env=dict(env), start_new_session=True)
        started.append(process)
        try:
            status = process.wait()
        finally:
            end_group(process.pid, _PATIENCE_SECONDS)
    # A shell's status of a command that a signal has ended.
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Passes Ctrl-C and the like on to the processes of the list and their groups."""
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
