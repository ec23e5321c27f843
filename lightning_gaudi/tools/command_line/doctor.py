"""Adds `lightning-gaudi doctor`, which says what keeps a Gaudi from being used, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi._version import __version__
from lightning_gaudi.tools.command_line.catalog import UsageError
from lightning_gaudi.tools.command_line.sigterm import unwound_by_sigterm
from lightning_gaudi.untrusted import printable, shown_command

if TYPE_CHECKING:
    from lightning_gaudi.tools.doctor import Options, Report

    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLE = "lightning-gaudi doctor --hosts -- mpirun -np 2 --host gaudi1,gaudi2"
_DESCRIPTION = """\
Look at this machine, or at all servers of a job: cards, driver, firmware, Gaudi software,
torch, Lightning, DeepSpeed, transformers, the environment, memory, network, folders. Each
finding says what to do. No card is acquired. Useful without a Gaudi, too, and in every
report of a fault: the output is plain text."""
_EPILOG = f"""\
exit status: 0 no error, 1 an error was found, 2 the command was not understood

examples:
  lightning-gaudi doctor
  lightning-gaudi doctor --checkpoints /shared/runs --port 29500
  {_EXAMPLE}
  lightning-gaudi doctor --hosts -- srun --nodes=2 --ntasks-per-node=1 --export=ALL
  lightning-gaudi doctor --hosts -- mpirun ... bash -c 'source /etc/profile; exec {{}}'

Behind `--hosts --` stands what you start ranks with, without the program; {{}} marks its place
where that is not the end."""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `doctor` command."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what keeps a Gaudi from being used, and what to do about it",
        usage="lightning-gaudi doctor [OPTION ...] [--hosts -- LAUNCHER ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument(
        "--checkpoints", metavar="FOLDER", help="where checkpoints go (default: this folder)"
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="where ranks meet (default: MASTER_PORT)"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="the network interface between servers (default: GLOO_SOCKET_IFNAME and "
        "HCCL_SOCKET_IFNAME)",
    )
    parser.add_argument(
        "--hosts", action="store_true", help="on all servers that a launcher, after --, starts on"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="with --hosts: how many seconds to wait for all servers (default 180)",
    )
    # The processes that --hosts starts get this option, with the token of their run.
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run, error=parser.error)


def _port(text: str) -> int:
    if text.isdecimal() and len(text) < 6 and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 1 to 65535")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if 0 < seconds < float("inf"):
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    # Without this, SIGTERM would leave a hanging hl-smi, or the ranks of a launcher, behind.
    with unwound_by_sigterm():
        return _examine(options, command)


def _examine(options: argparse.Namespace, command: Sequence[str]) -> int:
    from lightning_gaudi.tools.doctor import Options, diagnose, hosts

    wanted = Options(options.checkpoints, options.port, options.interface)
    if options.answer:
        hosts.answer(options.answer, wanted)
        # Not the report's status: a launcher ends all ranks when one of them fails.
        return 0
    if options.hosts and not command:
        options.error(f"--hosts needs what you start ranks with after --, as in: {_EXAMPLE}")
    if command and not options.hosts:
        options.error(f"{shown_command(command)} after -- needs --hosts, as in: {_EXAMPLE}")
    if options.timeout is not None and not options.hosts:
        options.error(f"--timeout needs --hosts, as in: {_EXAMPLE}")
    if options.hosts:
        report = _ask(command, wanted, 180.0 if options.timeout is None else options.timeout)
    else:
        report = diagnose(wanted)
    _show(report, is_json=options.json)
    return report.status


def _ask(launcher: Sequence[str], options: Options, timeout_s: float) -> Report:
    from lightning_gaudi.tools.doctor import hosts

    # Absolute, because a launcher may start ranks in another folder.
    folder = options.checkpoints and str(Path(options.checkpoints).absolute())
    arguments = {
        "--checkpoints": folder,
        "--port": options.port,
        "--interface": options.interface,
    }
    words = [f"{name}={value}" for name, value in arguments.items() if value is not None]
    try:
        return hosts.diagnose_hosts(launcher, words, timeout_s)
    except OSError as error:
        raise UsageError(
            f"{printable(launcher[0])} does not start: {error.strerror or error}. Behind "
            f"`--hosts --` stands what you start ranks with, as in: {_EXAMPLE}"
        ) from error


def _show(report: Report, *, is_json: bool) -> None:
    from lightning_gaudi.tools.doctor.findings import table

    if is_json:
        print(json.dumps({"lightning-gaudi": __version__} | report.as_json(), indent=2))
    else:
        print(f"lightning-gaudi doctor {__version__}\n\n{table(report)}")
    sys.stdout.flush()
