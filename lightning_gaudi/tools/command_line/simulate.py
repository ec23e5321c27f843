"""Adds `lightning-gaudi simulate`, which runs a command on a simulated Gaudi server."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from lightning_gaudi._core.launched import find_launched
from lightning_gaudi.simulator import activation, build
from lightning_gaudi.simulator.settings import (
    CARD,
    CARDS,
    EXEMPT,
    MAX_CARDS,
    RELEASE,
    RELEASES,
    RULE_MODES,
    RULES,
    SERVER,
    SIMULATE,
    SimulatorError,
    name_of_new_server,
    path_with_stand_in,
    server_name,
)
from lightning_gaudi.untrusted import shown

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLE = "lightning-gaudi simulate --cards 1 --card gaudi2 -- python train.py"
_DESCRIPTION = """\
Run a command with a simulated HPU: programs written for Gaudi run unmodified on this
CPU. Results are real, speed is not a Gaudi's. The command's exit status is passed on.
The device is compiled on first use (needs a C++ compiler) and kept in the cache."""
_EPILOG = f"""\
example:
  {_EXAMPLE}

environment that the command sees:
  {SIMULATE}, {CARD},
  {RELEASE}, {RULES},
  {SERVER} (whose processes share the cards), and PYTHONPATH
  with the simulator's habana_frameworks. Setting {SIMULATE} by hand
  does the same."""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `simulate` command."""
    parser = subparsers.add_parser(
        "simulate",
        help="run a command on a simulated Gaudi server",
        usage="lightning-gaudi simulate [OPTION ...] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_options(parser)
    parser.add_argument(
        "--rules",
        choices=RULE_MODES,
        default=os.environ.get(RULES) or RULE_MODES[0],
        help="what happens at a line that a Gaudi would refuse, slow down or compute otherwise: "
        f"warn once (default), error (for CI), or off; also {RULES}",
    )
    parser.add_argument(
        "--rules-exempt",
        default=os.environ.get(EXEMPT, ""),
        metavar="NAMES",
        help="rules and modules that nothing is said of, as in unique-dynamic,torchmetrics; "
        f"what a Gaudi refuses is said all the same; also {EXEMPT}",
    )
    parser.set_defaults(run=_run, error=parser.error, hint="; a command is written after --")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which server is simulated."""
    parser.add_argument(
        "--cards",
        type=int,
        choices=range(1, MAX_CARDS + 1),
        default=1,
        metavar="N",
        help=f"cards of the server, 1 to {MAX_CARDS} (default 1); a process uses one",
    )
    parser.add_argument(
        "--card",
        choices=list(CARDS),
        default="gaudi2",
        help="the generation: memory of "
        + ", ".join(f"{c.memory_gib} GiB ({c.key})" for c in CARDS.values()),
    )
    parser.add_argument(
        "--release",
        choices=list(RELEASES),
        default=os.environ.get(RELEASE) or list(RELEASES)[-1],
        help=f"the release of the Gaudi software whose package stands in "
        f"(default {list(RELEASES)[-1]}, or {RELEASE})",
    )


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if not command:
        options.error(f"no command; write it after --, as in: {_EXAMPLE}")
    env = environment(options) | {RULES: options.rules, EXEMPT: options.rules_exempt}
    if (status := prepare("`lightning-gaudi simulate`")) is not None:
        return status
    return become(command, env)


def prepare(asking: str) -> int | None:
    """Builds the simulated device; where that fails, says why and returns the exit status.

    Args:
        asking: What asks for it, as the user typed it.
    """
    try:
        activation.refuse_vendor(asking)
        # A build imports torch, which must not start the simulator in this process.
        with _environ({SIMULATE: ""}):
            build.ensure_built()
    except SimulatorError as error:
        return fail(2, str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return None


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Returns this process's environment with the simulator asked for."""
    return os.environ | {
        SIMULATE: str(options.cards),
        CARD: options.card,
        RELEASE: options.release,
        # All that the command starts share a server, as the ranks of mpirun do. Where this command
        # is itself such a rank, it joins the server of the others.
        SERVER: server_name() if find_launched() else name_of_new_server(),
        "PYTHONPATH": path_with_stand_in(),
    }


def become(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Replaces this process by the command, which then gets signals and exits by itself."""
    # Python ignores these signals, and `exec` would hand that on to the command.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        _exec(command, env)
    except OSError as error:
        return not_started(command[0], error)


def not_started(name: str, error: OSError) -> int:
    """Says why a command was not started, and returns the exit status that a shell would.

    Args:
        name: The name of the command.
        error: The error that starting it raised.
    """
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return fail(127, f"{name}: command not found.")
    return fail(126, f"{name}: {error.strerror}.")


def _exec(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    os.execvpe(command[0], list(command), dict(env))


def fail(status: int, message: str) -> int:
    """Says why nothing was run, and returns the exit status."""
    print(f"lightning-gaudi: {shown(message)}", file=sys.stderr)
    return status


@contextmanager
def _environ(changes: Mapping[str, str]) -> Iterator[None]:
    """Changes this process's environment for a while."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
