"""Adds `lightning-gaudi plan`, which says what a program will take of a card, and where it fits."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi.simulator.settings import MAX_CARDS, SimulatorError, read_release
from lightning_gaudi.tools.command_line.catalog import UsageError, local_file
from lightning_gaudi.tools.command_line.sigterm import unwound_by_sigterm
from lightning_gaudi.tools.command_line.simulate import prepare
from lightning_gaudi.untrusted import shown

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLE = (
    "lightning-gaudi plan --devices 8 --strategy ddp -- python train.py fit --config big.yaml"
)
_DESCRIPTION = """\
Have a program take two steps on a card that computes nothing, and say what they take of its
memory, which cards they fit, and with how many samples. The program is one that has a Trainer
run, of Lightning or of transformers, or a loop of its own: its own settings hold unless an option
says otherwise. Nothing is written, no Gaudi and little memory are needed: what is large on such a
card has a size and no values."""
_EPILOG = f"""\
examples:
  {_EXAMPLE}
  lightning-gaudi plan --cards gaudi2 config.yaml
  lightning-gaudi plan -- lightning-gaudi run mrpc fit --config simulated

exit status: 0 if one of the cards fits, 1 if none does, 2 if it cannot be planned."""


def _num_cards(text: str) -> int:
    """Returns a number of cards of one server."""
    if text.isdecimal() and 1 <= int(text) <= MAX_CARDS:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no number from 1 to {MAX_CARDS}, the cards of a server. For several servers "
        "leave it out, and have the program say how many there are: with LightningCLI "
        f"--trainer.devices={MAX_CARDS} --trainer.num_nodes=N."
    )


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `plan` command."""
    parser = subparsers.add_parser(
        "plan",
        help="say what a program will take of a card",
        usage="lightning-gaudi plan [OPTION ...] (CONFIG.yaml | -- COMMAND [ARGUMENT ...])",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG.yaml",
        help="a LightningCLI's that names its classes (class_path), to plan its fit",
    )
    parser.add_argument(
        "--cards", default="", metavar="NAMES", help="gaudi1,gaudi2,gaudi3,a100,h100 (default all)"
    )
    parser.add_argument(
        "--devices",
        type=_num_cards,
        metavar="N",
        help=f"cards that train together, 1 to {MAX_CARDS} (default the program's; 1 for 'auto')",
    )
    parser.add_argument("--strategy", help="the Trainer's (default the program's)")
    parser.add_argument("--precision", help="the Trainer's (default the program's)")
    parser.add_argument(
        "--batch-size", type=int, metavar="B", help="of each card (default the program's)"
    )
    parser.add_argument(
        "--checkpointing",
        action=argparse.BooleanOptionalAction,
        help="compute activations again in backward, where the model can",
    )
    parser.add_argument(
        "--keep-free",
        type=float,
        metavar="GIB",
        help="of each Gaudi, for what its graphs take beside tensors (default 10 %% of it)",
    )
    parser.add_argument(
        "--changes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="where it does not fit, look for what would make it fit (default yes)",
    )
    parser.add_argument(
        "--steps",
        type=_positive_int,
        metavar="N",
        help="of a whole run: say how long it takes (default those of a published run)",
    )
    parser.add_argument(
        "--price", type=_price, metavar="X", help="of an hour of one card: say what --steps cost"
    )
    parser.add_argument(
        "--faster",
        action="store_true",
        help="rehearse it with other settings, too, and rank what would make it faster",
    )
    parser.add_argument("--json", action="store_true", help="print all as JSON")
    parser.add_argument(
        "--picture", type=local_file, metavar="FILE", help="draw the memory as bars, as an SVG"
    )
    parser.set_defaults(run=_run, error=parser.error, hint="; a command is written after --")


def _positive_int(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of steps: give 1 or more")
    return number


def _price(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{value!r} is no price: give a number of 0 or more")
    return number


def _tell_progress(text: str) -> None:
    print(f"lightning-gaudi plan: {shown(text)}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    from lightning_gaudi.measured_card import from_environment
    from lightning_gaudi.simulator import measured
    from lightning_gaudi.tools.plan import faster, picture, plan, report
    from lightning_gaudi.tools.plan.cards import as_measured, find_cards, with_kept
    from lightning_gaudi.tools.plan.published_text import published_dict
    from lightning_gaudi.tools.plan.request import Request
    from lightning_gaudi.tools.plan.step_times import as_public_runs_dict

    if options.price is not None and options.steps is None:
        options.error("--price needs --steps: there is no cost without a length of the run")
    if options.config is not None:
        if command:
            options.error(f"{options.config} and a command: there is one program to plan")
        if not options.config.is_file():
            options.error(f"there is no file {options.config}")
        command = [sys.executable, "-m", "lightning_gaudi.tools.plan.config_program"]
        command.append(str(options.config))
    if not command:
        options.error(f"no command; write it after --, as in: {_EXAMPLE}")
    try:
        of_card, release = from_environment(), read_release().software
        if of_card is not None:
            measured.check(of_card)
            measured.check_release(of_card, release)
        cards = with_kept(as_measured(find_cards(options.cards), of_card), options.keep_free)
    except (ValueError, SimulatorError) as error:
        raise UsageError(str(error)) from error
    if (status := prepare("`lightning-gaudi plan`")) is not None:
        return status
    request = Request(
        strategy=options.strategy,
        devices=options.devices,
        precision=options.precision,
        checkpointing=options.checkpointing,
        batch_size=options.batch_size,
    )
    found: list[plan.Planned] = []
    try:
        with unwound_by_sigterm():
            ways = plan.plan(
                command, request, cards, with_changes=options.changes, tell=_tell_progress
            )
            for each in ways:
                found.append(each)
                if not options.json:
                    words = report.text(each, cards, num_steps=options.steps, price=options.price)
                    print(shown(words), flush=True)
            tried = found[:1]
            if options.faster:
                tried += faster.ways(command, found[0], cards, _tell_progress)
    except plan.PlanError as error:
        print(f"lightning-gaudi: cannot plan this: {shown(error)}", file=sys.stderr)
        return 2
    if options.faster and not options.json:
        print(shown(faster.text(cards, tried)), flush=True)
    if options.json:
        found += tried[1:]
        of_file = next((str(card.measured.path) for card in cards if card.measured), None)
        each_found = [
            {
                **each.as_dict(),
                "published": published_dict(each),
                "as_public_runs": as_public_runs_dict(each, cards),
                "measured": of_file,
            }
            for each in found
        ]
        print(json.dumps(each_found, indent=2))
    if options.picture:
        picture.draw(found, cards, options.picture)
    return int(not any(size for each in found for size in each.largest.values()))
