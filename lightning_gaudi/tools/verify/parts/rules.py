"""Runs the probes of the rules one after the other, and reports each before it begins."""

from __future__ import annotations

from lightning_gaudi.tools.verify.parts.context import Context, Tell
from lightning_gaudi.tools.verify.probes import PROBES
from lightning_gaudi.tools.verify.readings import read


def measure(context: Context, tell: Tell) -> None:
    """Reports what the card has shown in each probe of `options["keys"]`."""
    for key in context.options["keys"]:
        tell({"begun": key})
        found, detail = read(PROBES[key], context.device)
        tell({"key": key, "found": found, "detail": detail})
