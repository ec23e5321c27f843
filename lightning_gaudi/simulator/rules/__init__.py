"""The card's rules: what a Gaudi refuses, demotes, sends to the CPU, waits for or makes dynamic."""

from lightning_gaudi.simulator.rules.report import (
    Finding,
    GaudiRuleError,
    GaudiRuleWarning,
    exempt,
    findings,
    forget_findings,
    report,
    set_mode,
)
from lightning_gaudi.simulator.rules.rule import Rule, Verdict

__all__ = [
    "Finding",
    "GaudiRuleError",
    "GaudiRuleWarning",
    "Rule",
    "Verdict",
    "exempt",
    "findings",
    "forget_findings",
    "report",
    "set_mode",
]
