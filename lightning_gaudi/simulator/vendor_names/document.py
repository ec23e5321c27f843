"""Writes `docs/reference/vendor-names.md` from the names and what importing them finds.

`python -m lightning_gaudi.simulator.vendor_names.document`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import RELEASE, RELEASES, SIMULATE
from lightning_gaudi.simulator.vendor_names.found import Found

FILE = Path(__file__).parents[3] / "docs" / "reference" / "vendor-names.md"

_HEAD = """\
# The vendor's names

This page lists every public name of `habana_frameworks`, Intel Gaudi's Python package, and says
what it does on a simulated HPU: it works, or it exists and refuses to be called, with the reason.
The page is generated from a list of names (`lightning_gaudi/simulator/vendor_names`) and from what
importing them finds. Tests compare the two, and the parameters, in each release.

- `LIGHTNING_GAUDI_SIMULATE_RELEASE={releases}` chooses the release; {newest} is the default. A name
  without a note is in all three of them; "since" and "until" name the first and the last with it.
- "Read in" names the newest source in which a module was read: {newest_version} or 1.24.0; 2025, an
  undated copy between 1.20 and 1.24, if it differs from those; or 1.19, if there is nothing later.
  The sources of 1.20 and 1.22 could not be read, so 1.19 is taken for 1.20, and 2025 for 1.22.
- Names without a leading underscore are public. So are those with one in `utils.debug`,
  `utils.experimental` and `utils.profiler`, because training code calls them. A name that is a
  value raises when it is read.
- `internal.bridge_config` also has a `get_...` for each of the {num_flags} switches that
  {newest} reads from the environment, and a `set_...` for {num_settable} of them.
- Two packages that the vendor ships separately cannot be imported: `gpu_migration` and the media
  loaders.

{num_works} of the {num_names} names of {newest} work in eager mode.
"""


def markdown(found: dict[str, list[Found]]) -> str:
    """Returns the document's text.

    Args:
        found: What importing finds, by release.
    """
    newest = RELEASES[list(RELEASES)[-1]]
    by_name = {(f.module, f.name): f for key in RELEASES for f in found[key]}
    latest = [f for f in found[newest.key] if f.name]
    flags = [flag for flag in vendor_names.flags().values() if flag.is_in(newest)]
    head = _HEAD.format(
        releases="|".join(RELEASES),
        newest=newest.key,
        newest_version=newest.version,
        num_flags=len(flags),
        num_settable=sum(flag.is_settable(newest) for flag in flags),
        num_names=len(latest),
        num_works=sum(f.refusal is None for f in latest),
    )
    sections = [_section(module, by_name) for module in vendor_names.modules().values()]
    return head + _operators() + "".join(sections)


def _operators() -> str:
    searched = ", ".join(vendor_names.CALLERS.values())
    rows = [
        f"| `{each.name}` | {', '.join(each.callers)} | {each.lacks or 'works'} |"
        for each in vendor_names.operators().values()
    ]
    head = (
        "\n## Operators that libraries call\n\n"
        f"Of `torch.ops.hpu`, by {searched}. transformers 5.23,\n"
        "accelerate 1.15, peft 0.21, trl 1.16 and LitGPT 0.5.13 call none.\n"
        "[What the simulator has](../../lightning_gaudi/simulator/README.md) names the others.\n\n"
        "| Operator | Called by | Here |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _section(module: vendor_names.Module, by_name: dict[tuple[str, str], Found]) -> str:
    works, refuses = [], defaultdict(list)
    for name in module.names.values():
        shown = f"`{name.name}`{_when(name.since, name.until, name.eager_since)}"
        found = by_name.get((module.name, name.name))
        if found is None or found.refusal is None:
            works.append(shown)
        else:
            refuses[found.refusal].append(shown)
    lines = [
        f"\n## `{module.name}`{_when(module.since, module.until)}\n",
        f"Read in {module.read}.",
    ]
    if works:
        lines.append(f"- Works: {', '.join(works)}")
    lines += [f"- Refuses: {', '.join(names)}. {reason}" for reason, names in refuses.items()]
    alone = by_name.get((module.name, ""))
    if alone is not None and alone.refusal:
        lines.append(f"- Has names that were not listed. {alone.refusal}")
    lines[1] += "\n" if len(lines) > 2 else ""
    return "\n".join(lines) + "\n"


def _when(since: str | None, until: str | None, eager_since: str | None = None) -> str:
    notes = [f"since {since}"] if since else []
    notes += [f"until {until}"] if until else []
    notes += [f"in eager mode since {eager_since}"] if eager_since else []
    return f" ({', '.join(notes)})" if notes else ""


def parse(text: str) -> list[Found]:
    """Returns what `found` has printed."""
    return [Found(**entry) for entry in json.loads(text.splitlines()[-1])]


def _look(keys: Iterable[str]) -> dict[str, list[Found]]:
    module = f"{vendor_names.__name__}.found"
    found = {}
    for key in keys:
        # The vendor's switches change what is found, as PT_HPU_LAZY_MODE does.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PT_HPU_")}
        env |= {SIMULATE: "1", RELEASE: key}
        command = [sys.executable, "-W", "ignore", "-m", module]
        result = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        found[key] = parse(result.stdout)
    return found


if __name__ == "__main__":
    FILE.write_text(markdown(_look(RELEASES)))
