"""`lightning-gaudi verify`: what the tables say of a card, and what the card says."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi import measured_card
from lightning_gaudi._core.whole_file import put_whole
from lightning_gaudi.tools.command_line.catalog import UsageError, local_file
from lightning_gaudi.tools.command_line.sigterm import unwound_by_sigterm
from lightning_gaudi.tools.command_line.simulate import become
from lightning_gaudi.untrusted import shown

if TYPE_CHECKING:
    from lightning_gaudi.tools.verify.run import Verification

    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DEFAULT = Path("card.json")
_EXAMPLE = "lightning-gaudi verify --hosts -- mpirun -np 16 --host gaudi1:8,gaudi2:8"
_DESCRIPTION = """\
Compare this machine's Gaudi with what this package says of one: each rule of what a card refuses,
computes elsewhere or waits for, how it counts memory, what a launch, a graph, a product of
matrices, a copy, a collective and a step of training take, and how programs end. It takes up to
20 minutes, says what differs in at most 25 lines, and writes a file to attach to a report. What
crashes or hangs is ended and named, and the rest goes on."""
_EPILOG = f"""\
examples:
  lightning-gaudi verify
  lightning-gaudi verify --quick --only rules,memory
  lightning-gaudi simulate --cards 2 -- lightning-gaudi verify
  {_EXAMPLE}
  lightning-gaudi verify --apply card.json
  lightning-gaudi verify --apply card.json -- lightning-gaudi plan -- python train.py

exit status: 0 if the card is as the tables say, 1 if something differs or could not be measured,
2 if nothing could be; with --apply that of the command."""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `verify` command."""
    parser = subparsers.add_parser(
        "verify",
        help="compare a Gaudi with what this package says of one",
        usage="lightning-gaudi verify [OPTION ...] [--hosts -- LAUNCHER ... | --apply FILE "
        "[-- COMMAND ...]]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes: about 3 minutes")
    parser.add_argument(
        "--only", default="", metavar="PARTS", help="some parts, with commas between them"
    )
    parser.add_argument(
        "--output",
        type=local_file,
        default=_DEFAULT,
        metavar="FILE",
        help=f"where the measurements are written (default {_DEFAULT})",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds after which a part of which nothing is heard is ended (default 120)",
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="HCCL between the servers that a launcher, after --, starts on",
    )
    parser.add_argument(
        "--apply",
        type=Path,
        metavar="FILE",
        help="have the simulator, plan and audit follow a file of measurements",
    )
    parser.add_argument("--answer", help=argparse.SUPPRESS)  # of those that --hosts starts
    parser.set_defaults(run=_run, error=parser.error, hint="")


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if not 0 < options.patience < float("inf"):
        options.error(f"--patience {options.patience:g} is no number of seconds above 0")
    if options.apply is not None:
        return _apply(options.apply, command)
    if options.answer:
        from lightning_gaudi.tools.verify import hosts

        hosts.answer(options.answer, is_quick=options.quick)
        return 0  # a launcher ends all ranks when one fails
    if options.hosts and not command:
        options.error(f"--hosts needs what you start ranks with after --, as in: {_EXAMPLE}")
    if command and not options.hosts:
        options.error(f"a command after -- needs --hosts or --apply, as in: {_EXAMPLE}")
    _check_output(options.output)
    with unwound_by_sigterm():
        return _measure(options, command)


def _measure(options: argparse.Namespace, launcher: Sequence[str]) -> int:
    from lightning_gaudi.tools.verify import hosts, report, run

    is_kept = False

    def keep(found: Verification) -> None:
        nonlocal is_kept
        is_kept = True
        _write(found, options.output)

    try:
        if options.hosts:
            found = hosts.verify(launcher, is_quick=options.quick, patience_s=options.patience)
            keep(found)
        else:
            wanted = run.Options(_parts(options.only, run.PARTS), options.quick, options.patience)
            found = run.verify(wanted, _Progress(), keep)
    except (KeyboardInterrupt, SystemExit):
        if is_kept:
            said = f"what was measured until now is in {options.output}"
            print(f"lightning-gaudi verify: {shown(said)}", file=sys.stderr, flush=True)
        raise
    except run.VerifyError as error:
        raise UsageError(f"cannot verify: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot verify: {error.strerror or error}") from error
    print(report.render(found, str(options.output)), flush=True)
    return int(bool(report.differences(found) or found.lost))


def _parts(names: str, known: Sequence[str]) -> Sequence[str]:
    from lightning_gaudi._core.wording import did_you_mean

    wanted = [each.strip() for each in names.split(",") if each.strip()]
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(
                f"--only: there is no part {name!r}.{hint} There are {', '.join(known)}."
            )
    return wanted or known


class _Progress:
    """Tells on the standard error what goes on."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        passed = time.monotonic() - self._started
        print(
            f"lightning-gaudi verify: {passed:4.0f} s  {shown(text)}", file=sys.stderr, flush=True
        )


def _check_output(path: Path) -> None:
    """Refuses to write over what is no file of measurements, before 20 minutes are spent."""
    if not path.exists():
        return
    try:
        is_ours = json.loads(path.read_text("utf-8"))["kind"] == measured_card.KIND
    except (OSError, ValueError, TypeError, KeyError):
        is_ours = False
    if not is_ours:
        raise UsageError(
            f"{path} is there and is no file of measurements: it is not written over. Name another "
            "with --output."
        )


def _write(found: Verification, path: Path) -> None:
    from lightning_gaudi.tools.doctor import Machine

    text = Machine().without_home(json.dumps(found.as_json(), indent=1)) + "\n"
    try:
        with put_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _apply(path: Path, command: Sequence[str]) -> int:
    """Checks a file, says what of it is followed, and runs a command that follows it."""
    from lightning_gaudi.simulator import measured

    try:
        found = measured_card.read(path)
        measured.check(found)
    except measured_card.CardFileError as error:
        raise UsageError(str(error)) from error
    absolute = path.absolute()
    for line in measured.describe(found):
        print(f"lightning-gaudi: {shown(line)}", file=sys.stderr)
    if command:
        return become(command, {**os.environ, measured_card.VARIABLE: str(absolute)})
    print(f"export {measured_card.VARIABLE}={absolute}")
    return 0
