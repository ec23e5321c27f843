"""Renders the report of a run as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from lightning_gaudi.report import html
from recipes.common.sections import Section


def page(
    title: str,
    state: str,
    is_early: bool,
    drawings: Sequence[str],
    sections: Iterable[Section],
    footer: str,
) -> str:
    """Writes the report.

    Args:
        title: of the run.
        state: how it ended.
        is_early: whether that was before its time.
        drawings: <svg> elements, taken as they are.
        sections: those without a line are left out.
        footer: a line of text.
    """
    return html.render(
        Path(__file__).with_name("page.html"),
        title=title,
        state=state,
        is_early=is_early,
        drawings=[Markup(each) for each in drawings],
        sections=list(sections),
        footer=footer,
    )
