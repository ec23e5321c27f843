"""Writes the page of rules for people: `python -m lightning_gaudi.simulator.rules.document`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from lightning_gaudi import measured_card
from lightning_gaudi.measured_card import MeasuredCard
from lightning_gaudi.simulator import measured
from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.simulator.rules.table import RULES, find, is_as_said

PATH = Path(__file__).parents[3] / "docs" / "reference" / "rules.md"

_HEAD = """\
# What a Gaudi does otherwise

A program that runs on a CPU may be refused by a Gaudi, run slowly there, or compute other numbers.
In the tables below the simulated HPU looks up every operator. They are generated from
`lightning_gaudi/simulator/rules`, and each row names its source. All of it was read in the
vendor's sources and documentation. {measured}

`LIGHTNING_GAUDI_SIMULATE_RULES`, or `lightning-gaudi simulate --rules`, chooses what happens when a
line of your program meets a row:

| | |
|---|---|
| `warn` | a `GaudiRuleWarning` names the file and line, once for each line and row (the default) |
| `error` | a `GaudiRuleError` is raised instead, which suits CI |
| `off` | nothing is reported, and nothing is refused |

`LIGHTNING_GAUDI_SIMULATE_RULES_EXEMPT`, or `--rules-exempt`, names rules and modules that are not
reported: `--rules error --rules-exempt torchmetrics,unique-dynamic`.

What a card refuses raises unless the rules are off. In every case the simulator computes what the
CPU computes, to the bit, and counts: fallbacks in `hpu.metrics` ("cpu_fallback"), waits in
`simulator.host_syncs()`. `simulator.rules.findings()` lists the rows that were met. A type is
reported where it comes onto the card, not at every later line. Printing a tensor is not reported.

The line is the innermost one on the stack that is not in a known library (torch, Lightning,
transformers, DeepSpeed and others). With several ranks only the first one warns; the others keep
their findings.
"""

_SECTIONS = {
    Verdict.REFUSED: ("Refused", "A card raises, and so does the simulator."),
    Verdict.DEMOTED: (
        "Computed otherwise",
        "A card computes other numbers. The simulator reports it, and keeps the CPU's numbers.",
    ),
    Verdict.ON_CPU: (
        "Sent to the CPU",
        "A card has no kernel. It waits, copies the arguments to the host, computes there and "
        "copies the result back. This is reported, and counted as a fallback and a wait of the "
        "host.",
    ),
    Verdict.DYNAMIC: (
        "Of a shape that depends on values",
        "This is reported, and counted as a wait of the host.",
    ),
    Verdict.WAITS: (
        "Waited for",
        "The host needs the value. This is counted and not reported, because every program reads "
        "a loss now and then.",
    ),
    Verdict.UNDEFINED: (
        "Not survived for sure",
        "What happens on a card is not known: a hang, a crash, or nothing. This is reported.",
    ),
    Verdict.NOTED: (
        "Only to know",
        "These rows concern last digits, or what nothing here can see. They are never reported.",
    ),
}
_MANY = 12
"""More operators than this are a list below the table."""


def markdown() -> str:
    """Returns the document."""
    return "\n".join(_parts())


def _measured() -> str:
    """Returns which cards somebody has measured, and where they are otherwise than a row."""
    cards = [measured_card.read(path) for path in sorted(measured.TABLES.glob("*.json"))]
    if not cards:
        return "Nothing was measured on a card yet:\n`lightning-gaudi verify` does that."
    return "\n".join(map(_card, cards))


def _card(card: MeasuredCard) -> str:
    otherwise = [
        f"`{key}` ({found[mode]} in {mode} mode)"
        for key, found in sorted(card.rules.items())
        for mode in found
        if not is_as_said(find(key), found[mode])
    ]
    of_them = f", of which {', '.join(otherwise)} otherwise" if otherwise else ""
    text = f"On a {card.card} with release {card.release} {len(card.rules)} were measured{of_them}."
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _parts() -> Iterator[str]:
    yield _HEAD.replace("{measured}", _measured())
    for verdict, (title, text) in _SECTIONS.items():
        rules = [rule for rule in RULES if rule.verdict is verdict]
        if not rules:
            continue
        yield f"## {title}\n\n{textwrap.fill(text, 100)}\n"
        yield "| Rule | Operators | Where | A Gaudi | Instead | Source |"
        yield "|---|---|---|---|---|---|"
        yield from map(_row, rules)
        yield ""
        for rule in rules:
            if len(rule.operators) > _MANY:
                yield f"`{rule.key}` ({len(rule.operators)} operators):\n"
                yield textwrap.fill(_names(rule), 100, break_on_hyphens=False) + "\n"


def _row(rule: Rule) -> str:
    operators = "see below" if len(rule.operators) > _MANY else _names(rule)
    cells = (f"`{rule.key}`", operators, _where(rule), rule.what, rule.instead, rule.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(rule: Rule) -> str:
    if rule.operators == ("*",):
        return "what brings it onto the card"
    return ", ".join(_name(operator) for operator in rule.operators)


def _name(operator: str) -> str:
    if operator == "process::fork":
        return "`os.fork`"
    if operator.startswith("tag::"):
        return f"torch's tag `{operator.removeprefix('tag::')}`"
    return f"`{operator.removeprefix('aten::')}`"


def _where(rule: Rule) -> str:
    parts = [", ".join(rule.dtypes)] if rule.dtypes else []
    parts += [f"{rule.mode} mode"] if rule.mode else []
    parts += [", ".join(rule.cards)] if rule.cards else []
    parts += ["release " + ", ".join(rule.releases)] if rule.releases else []
    parts += [rule.when.replace("_", " ")] if rule.when else []
    return "; ".join(parts) or "always"


if __name__ == "__main__":
    PATH.write_text(markdown())
