"""The probes of the rules, one after the other; what is begun is told before it is."""

from __future__ import annotations

from lightning_gaudi.tools.verify.parts.context import Context, Tell
from lightning_gaudi.tools.verify.probes import PROBES
from lightning_gaudi.tools.verify.readings import read


def measure(context: Context, tell: Tell) -> None:
    """Tells of each probe of `options["keys"]` what the card has shown."""
    for key in context.options["keys"]:
        tell({"begun": key})
        found, detail = read(PROBES[key], context.device)
        tell({"key": key, "found": found, "detail": detail})
