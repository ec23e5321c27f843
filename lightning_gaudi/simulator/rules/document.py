"""Write the table of rules for people: `python -m lightning_gaudi.simulator.rules.document`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from lightning_gaudi.simulator.rules.rule import Rule, Verdict
from lightning_gaudi.simulator.rules.table import RULES

PATH = Path(__file__).parents[3] / "docs" / "reference" / "rules.md"

_HEAD = """\
# What a Gaudi does otherwise

A program that runs on a CPU may be refused by a Gaudi, slow it down, or compute other numbers on
it. This is the list that the simulated HPU looks operators up in, made of
`lightning_gaudi/simulator/rules`; each row says who says so. What stands here was read in the
vendor's sources and documentation, not measured on a card.

`LIGHTNING_GAUDI_SIMULATE_RULES`, or `lightning-gaudi simulate --rules`, says what becomes of a line
of your program that meets a row:

| | |
|---|---|
| `warn` | a `GaudiRuleWarning` with the file and line, once a line and row (the default) |
| `error` | it raises `GaudiRuleError` instead: for CI |
| `off` | nothing is said, and nothing refused |

`LIGHTNING_GAUDI_SIMULATE_RULES_EXEMPT`, or `--rules-exempt`, names rules and modules of which
nothing is said: `--rules error --rules-exempt torchmetrics,unique-dynamic`.

What a card refuses raises unless the rules are off. Whatever is said, the simulator computes as the
CPU does, to the bit, and counts: fallbacks in `hpu.metrics` ("cpu_fallback"), waits in
`simulator.host_syncs()`. `simulator.rules.findings()` lists what was met. A type is reported where
it comes onto the card, not at every line that goes on with it. Printing a tensor is no finding.

The line is the innermost on the stack that is not in a known library (torch, Lightning,
transformers, DeepSpeed and others). With several ranks the first one warns; the others keep their
findings.
"""

_SECTIONS = {
    Verdict.REFUSED: ("Refused", "A card raises, and so does the simulator."),
    Verdict.DEMOTED: (
        "Computed otherwise",
        "A card computes other numbers; the simulator says so and keeps the CPU's.",
    ),
    Verdict.ON_CPU: (
        "Sent to the CPU",
        "A card has no kernel: it waits, copies the arguments to the host, computes there and "
        "copies the result back. Reported, and counted as a fallback and a wait of the host.",
    ),
    Verdict.DYNAMIC: (
        "Of a shape that depends on values",
        "Reported, and counted as a wait of the host.",
    ),
    Verdict.WAITS: (
        "Waited for",
        "The host needs the value. Counted, not reported: a program reads a loss now and then.",
    ),
    Verdict.UNDEFINED: (
        "Not survived for sure",
        "What follows on a card is not known: a hang, a crash, or nothing. Reported.",
    ),
    Verdict.NOTED: (
        "Only to know",
        "Last digits, or what nothing here can see. Never reported.",
    ),
}
_MANY = 12
"""More operators than this are a list below the table."""


def markdown() -> str:
    """Returns the document."""
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield _HEAD
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
