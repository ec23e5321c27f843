"""Pages of HTML that need nothing else: no network, no scripts. Templates are jinja2's."""

from __future__ import annotations

from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

_DOCUMENT = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
{{ style }}
</style>
</head>
<body>
{% block body %}{% endblock %}
</body>
</html>
"""


def render(template: str, *, title: str, style: str, **values: Any) -> str:
    """Returns a page.

    Args:
        template: One of jinja2's that says `{% extends "document" %}` and has the block `body`.
            What it is given is escaped, but for `Markup`.
        title: Of the page.
        style: CSS, taken as it is.
        values: What the template names.

    Raises:
        jinja2.UndefinedError: It names something else.
    """
    environment = Environment(
        loader=DictLoader({"document": _DOCUMENT}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found = environment.from_string(template)
    return found.render(title=title, style=Markup(style), **values)
