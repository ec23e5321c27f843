"""Write what `lightning-gaudi verify` has measured on a Gaudi into the tables of this repository.

    python scripts/write_card_tables.py card.json

The file goes to `lightning_gaudi/simulator/measured_cards`, one for a card and a release, where it
stands before the rows of `simulator/rules` and the terms of memory that were read in sources: the
simulator follows it, `verify` compares with it, and the page of the rules names it. Doctor's
findings are left out. What was measured before is compared with what is new.

The status is 0 if it was written, 2 if it cannot be.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lightning_gaudi import measured_card
from lightning_gaudi.simulator import measured
from lightning_gaudi.simulator.rules import document

_KEPT = (
    *("kind", "schema", "lightning_gaudi", "date", "card", "device_name", "num_cards", "release"),
    *("is_simulated", "is_quick", "modes", "versions", "rules", "memory", "faults", "figures"),
)


def main() -> int:
    """Checks the file, writes it, and writes the page of the rules anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--simulated", action="store_true", help="take one of a simulated card, too: to try this"
    )
    options = parser.parse_args()
    try:
        found = measured_card.read(options.file)
        measured.check(found)
    except measured_card.CardFileError as error:
        return _refuse(str(error))
    if found.is_simulated and not options.simulated:
        return _refuse(f"{options.file} was measured on a simulated card, which proves nothing.")
    path = measured.table_path(found.card, found.release)
    for line in _news(found, measured.of_repository(found.card, found.release)):
        print(line)
    values = json.loads(options.file.read_text("utf-8"))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_kept(values), indent=1) + "\n", "utf-8")
    document.PATH.write_text(document.markdown())
    print(f"{path} and {document.PATH} are written.")
    return 0


def _kept(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _KEPT if name in values}


def _news(
    found: measured_card.MeasuredCard, before: measured_card.MeasuredCard | None
) -> list[str]:
    """Returns what differs from what was measured before; from the rows, where nothing was."""
    if before is None:
        return measured.describe(found)
    return [
        f"{key} ({mode}): {before.rules.get(key, {}).get(mode, 'not measured')} -> {now}"
        for key, modes in found.rules.items()
        for mode, now in modes.items()
        if before.rules.get(key, {}).get(mode) != now
    ]


def _refuse(reason: str) -> int:
    print(f"write_card_tables: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
