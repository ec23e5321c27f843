"""The page needs nothing else, the figure shows all curves, the lines say what was measured."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from lightning_gaudi.callbacks import ThroughputReport, TokenThroughput
from recipes.common import findings
from recipes.common.drawing import Panel, save_png, to_svg
from recipes.common.page import page
from recipes.common.sections import Row, section, table

PANELS = [
    Panel("loss", {"training": [(2, 3.0), (4, 2.0)], "validation": [(4, 2.5)]}, {"chance": 2.8}),
    Panel("val/f1", {"validation": [(4, 0.5)]}),
]
SECTIONS = [
    section("Scores", [("val/<f1>", "0.5"), ("not measured", None)]),
    section("Goals", [Row("graphs", "5", "at most 4", False), Row("margin", "1", "over 0", True)]),
    section("Empty", []),
]


class _Checked(HTMLParser):
    """Counts open elements, and keeps what a browser would fetch."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def example_page() -> str:
    return page("Run <1>", "ended early", True, to_svg(PANELS), SECTIONS, "foot")


def test_the_page_is_whole_and_fetches_nothing():
    text = example_page()
    checked = _Checked()
    checked.feed(text)
    assert checked.open == []
    assert "script" not in text
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert "<h1>Run &lt;1&gt;</h1>" in text
    assert '<p class="state early">ended early</p>' in text
    assert "val/&lt;f1&gt;</th><td>0.5</td>" in text
    assert '<span class="missed">MISSED (at most 4)</span>' in text
    assert "Empty" not in text
    assert text.count("<svg") == 2


def test_figures_are_svg_whose_names_do_not_collide():
    drawings = to_svg(PANELS)
    assert drawings == to_svg(PANELS)
    defined = []
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)  # whole XML
        assert "viewBox" in root.attrib
        assert "width" not in root.attrib
        defined.append({each.get("id") for each in root.iter() if each.get("id")})
        used = re.findall(r'(?:xlink:href="|url\()#([^")]+)', drawing)
        assert set(used) <= defined[-1]
    assert not defined[0] & defined[1]
    assert all(f">{word}<" in drawings[0] for word in ("training", "validation", "chance"))


def test_the_png_is_one(tmp_path):
    save_png("Run", PANELS, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_what_was_measured():
    assert table(SECTIONS).splitlines() == [
        "",
        "Scores",
        "  val/<f1>  0.5",
        "",
        "Goals",
        "  graphs    5  MISSED (at most 4)",
        "  margin    1  met (over 0)",
    ]


@pytest.mark.parametrize("is_met", [True, False, None])
def test_a_verdict_names_the_goal(is_met):
    verdict = Row("graphs", "4", "at most 4", is_met).verdict
    assert ("at most 4" in verdict) == (is_met is not None)


def test_the_pace_of_what_is_no_text_has_no_tokens():
    throughput = TokenThroughput()
    throughput.report = ThroughputReport(2, num_tokens=60, num_slots=80, num_samples=8, seconds=2.0)
    assert dict(findings.speed(throughput))["tokens a second"] == "30 (padding not counted)"
    found = findings.speed(throughput, "pictures")
    rows = {name: text for name, text in found if text is not None}
    assert rows == {"pictures a second": "4.0", "measured over": "2 batches, 2.0 s"}
