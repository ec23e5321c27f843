"""Renders pages of HTML that need nothing else: no network, no scripts. Templates are jinja2's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: Path, *, title: str, **values: Any) -> str:
    """Returns a page.

    Args:
        template: A file of jinja2's that says `{% extends "document.html" %}` and has the blocks
            `style`, for CSS, and `body`. Values are escaped, unless they are `Markup`.
        title: The title of the page.
        values: The values that the template names.

    Raises:
        jinja2.UndefinedError: The template names something else.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(title=title, **values)
