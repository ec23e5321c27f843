"""What recipes need for what others have written: texts, names, JSON, files that are to be trusted.

Recipes are copied into projects, and import public names alone.
"""

from lightning_gaudi._core.ownership import why_untrusted
from lightning_gaudi._core.secrets import hide_secrets, shown, shown_command
from lightning_gaudi._core.untrusted import parse_json, path_inside, printable

__all__ = [
    "hide_secrets",
    "parse_json",
    "path_inside",
    "printable",
    "shown",
    "shown_command",
    "why_untrusted",
]
