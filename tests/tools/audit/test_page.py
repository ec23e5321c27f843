"""The page needs nothing else, and shows what it is given."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from lightning_gaudi.report import svg
from lightning_gaudi.tools.audit import findings, page
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.audit.record import Line, Loader, Record, Step

_VOID = {"meta", "br"}


def _record() -> Record:
    """One with everything that a page shows, and with names that are no HTML."""
    where = ("/mine/<b>.py", 7, "step", "", "training", "forward", False)
    steps = list(range(6))
    shapes = [{"<ids>": [4, length]} for length in (8, 16, 24, 32, 40, 48)]
    return Record(
        card="Gaudi 2",
        release="1.24.1",
        steps=[
            Step(5 + n, 1, n % 2, n % 2, 2, 64, 8, collectives=1, collective_bytes=32)
            for n in steps
        ],
        lines=[
            Line("launch", "", *where, count=24, amount=30, steps=steps),
            Line("host_sync", "aten::_local_scalar_dense", *where, count=6, steps=steps),
            Line("collective", "all_reduce", *where, count=6, amount=192, steps=steps),
        ],
        loaders=[
            Loader(
                *("Rows", "/mine/<b>.py", 3, "pad", "training"),
                shapes=shapes,
                batches=steps,
                steps=steps,
                num_tokens=60,
                num_places=100,
                lengths={8: 3, 40: 1},
                buckets=[8, 40],
            )
        ],
        memory={"weights": 2**20},
        peak_bytes=3 * 2**20,
        limit_bytes=2**30,
    )


class _Checker(HTMLParser):
    """Holds each tag against the one that closes it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {"src", "href", "srcset"} & dict(attrs).keys(), (tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def example_page() -> str:
    audit = Audit(("python", "train.py", "--name=<x>"), 0, [_record()])
    return page.render(audit, findings.find(audit))


@pytest.fixture(scope="module")
def shown() -> str:
    return example_page()


def test_a_page_is_whole_and_asks_for_nothing(shown: str) -> None:
    checker = _Checker()
    checker.feed(shown)
    assert checker.open == []
    assert {"svg", "rect", "style"} <= checker.seen
    assert checker.seen.isdisjoint({"script", "link", "img", "iframe"})
    assert "url(" not in shown
    assert "@import" not in shown


def test_what_the_user_named_is_text_and_no_tags(shown: str) -> None:
    checker = _Checker()
    checker.feed(shown)
    for text in ("/mine/<b>.py:7", "--name=<x>", "<ids> [4, 8]"):
        assert text in checker.text


def test_a_page_has_every_part(shown: str) -> None:
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", shown)
    assert headings == [
        *("2 findings, worst first", "Steps of rank 0", "Launches", "Graphs compiled"),
        *("Host syncs", "Bytes copied", "Bytes in collectives", "By line, all steps"),
        *("Memory at its peak", "Shapes of Rows, training", "Samples by length", "Collectives"),
    ]
    for text in ("40.0% of the places are padding", "best boundaries for these lengths: [8, 40]"):
        assert text in shown


def test_bars_are_as_high_as_their_values() -> None:
    picture = svg.bars_by_step({"a": [2, 4], "b": [2, 0]}, 1, "what")
    drawing = ElementTree.fromstring(str(picture).partition("</svg>")[0] + "</svg>")
    bars = {
        title.text: float(rectangle.attrib["height"])
        for rectangle in drawing.findall(".//{*}rect")
        for title in rectangle.findall("{*}title")
    }
    assert bars["step 1: 2 a"] == bars["step 1: 2 b"] == bars["step 2: 4 a"] / 2 > 0
    assert bars["step 2: 0 b"] == 0


def test_lying_bars_are_as_long_as_their_values() -> None:
    picture = svg.bars({"a": 10, "b": 5}, {"a": "ten", "b": "five"}, "what")
    found = ElementTree.fromstring(picture).findall(".//{*}rect")
    lengths = [float(each.attrib["width"]) for each in found]
    assert lengths[0] == 2 * lengths[1] > 0
    assert ">five</text>" in picture


def test_a_clean_program_and_one_that_failed_have_a_page_too() -> None:
    assert "Nothing was found." in page.render(Audit(("true",), 0, [Record(lines=[])]), [])
    failed = page.render(Audit(("false",), 3, []), [])
    assert "The command exited with 3." in failed
