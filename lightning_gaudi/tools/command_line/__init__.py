"""Implements the command line, `lightning-gaudi`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from lightning_gaudi._core.wording import nearest
from lightning_gaudi._version import __version__
from lightning_gaudi.tools.command_line import (
    audit,
    catalog,
    consolidate,
    copy,
    doctor,
    plan,
    recipes,
    run,
    simulate,
    verify,
)
from lightning_gaudi.untrusted import shown

__all__ = ["main"]

_PROGRAM = "lightning-gaudi"
COMMANDS = {
    "recipes": recipes,
    "run": run,
    "copy": copy,
    "simulate": simulate,
    "plan": plan,
    "audit": audit,
    "consolidate": consolidate,
    "doctor": doctor,
    "verify": verify,
}
"""The module that adds each command, by its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The arguments after the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # A recipe's own pipe broke, as one to a logger: that is a failure of the training.
        if words[:1] == ["run"]:
            raise
        # The reader has what it wanted, as `head` has. Python flushes stdout once more at its end,
        # which would fail again without another file behind it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except catalog.UsageError as error:
        print(f"{_PROGRAM}: {shown(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{_PROGRAM}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(words: list[str]) -> int:
    if words[:1] == ["run"] and len(words) > 1 and not words[1].startswith("-"):
        return run.run(words[1], words[2:])
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise catalog.UsageError(
            f"There is no command {words[0]!r}. {catalog.choices(words[0], COMMANDS)}"
        )
    # What follows `--` is the command's alone, but argparse would take the options in it for ours.
    split = words.index("--") if "--" in words else len(words)
    arguments, command = words[:split], words[split + 1 :]
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Train on Intel Gaudi with PyTorch Lightning."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        module.add_parser(subparsers)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = subparsers.choices[arguments[0]]._option_string_actions
        close = nearest(unknown[0].partition("=")[0], known)
        hint = f"; did you mean {close}?" if close else getattr(options, "hint", "")
        options.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    status: int = options.run(options, command)
    return status
