"""The site: built from the sources, looked at in a browser as a reader does."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.recipes.common import test_report
from tests.tools.audit import test_page

from .blocks import ROOT

pytestmark = pytest.mark.docs

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(_CHROMIUM is None, reason="install a browser (Debian: chromium)")
QUESTIONS = yaml.safe_load((Path(__file__).parent / "questions.yaml").read_text())
_PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it: every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        # As root, as in a container, it has no sandbox.
        started = running.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def test_every_public_name_has_an_entry(site: Path) -> None:
    from scripts.documentation_site import PACKAGES, definition, public_names

    pages = "".join(page.read_text() for page in (site / "reference" / "api").rglob("*.html"))
    names = [(package, name) for package in PACKAGES for name in public_names(package)]
    assert len(names) > 100
    lacking = [
        f"{package}.{name}"
        for package, name in names
        if f'id="{package}.{name}"' not in pages
        and f'id="{definition(package, name)}"' not in pages
    ]
    assert lacking == []


def _page_address(address: str, page: str) -> str:
    """Returns where a page of `docs/` is on the site."""
    place = page.removesuffix(".md").removesuffix("index").rstrip("/")
    return f"{address}/{place}/" if place else f"{address}/"


@needs_browser
def test_no_page_scrolls_sideways_on_a_phone_or_complains(
    site: Path, address: str, browser: Any
) -> None:
    page = browser.new_page(viewport=_PHONE)
    said: list[str] = []
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    wide = []
    for file in sorted(site.rglob("index.html")):
        place = file.parent.relative_to(site).as_posix()
        page.goto(f"{address}/{place}/", wait_until="load")
        width = page.evaluate("document.scrollingElement.scrollWidth")
        if width > _PHONE["width"]:
            wide.append((place, width))
        without = page.locator("article img:not([alt]), article img[alt='']").count()
        assert not without, f"{place} has {without} pictures without words"
        assert page.locator("h1").count() == 1, f"{place} has one heading of its own"
    page.close()
    assert wide == []
    assert said == []


@needs_browser
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["question"][:40])
def test_a_question_is_answered_by_a_search(question: Any, address: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto(address)
    page.locator(".md-search__input").first.click()
    page.locator(".md-search__input").first.fill(question["search"])
    # The search listens to keys, and `fill` presses none: without one it begins only if its index
    # comes later.
    page.keyboard.press("End")
    page.locator(".md-search-result__link").first.wait_for()
    found = page.locator(".md-search-result__link").evaluate_all(
        "links => links.map(each => each.href.split('?')[0].split('#')[0])"
    )
    page.close()
    wanted = _page_address(address, question["page"])
    first = list(dict.fromkeys(found))[:5]
    assert wanted in first, f"{question['search']} finds {first}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["question"][:40])
def test_the_page_has_the_answer(question: Any, site: Path) -> None:
    file = site / question["page"].removesuffix(".md").removesuffix("index") / "index.html"
    text = " ".join(file.read_text().split())
    assert question["answer"] in text


def _serious(page: Any, context: str | None = None) -> list[tuple[str, str, str]]:
    """Returns what keeps some readers from reading what is there."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # What is moderate is the theme's own: a landmark for each button that copies code.
    return [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in axe.run(page, context=context).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_headings(scheme: str, address: str, browser: Any) -> None:
    page = browser.new_page(color_scheme=scheme)
    for place in ("", "tutorials/first-run/", "reference/settings/", "reference/api/callbacks/"):
        page.goto(f"{address}/{place}", wait_until="load")
        assert _serious(page, "article") == [], place
    page.close()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("write", [test_page.example_page, test_report.example_page])
def test_the_page_of_an_audit_or_a_run(
    write: Callable[[], str], scheme: str, browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(write())
    page = browser.new_page(viewport=_PHONE, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.goto((tmp_path / "page.html").as_uri(), wait_until="load")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= _PHONE["width"]
    assert page.locator("h1").count() == 1
    # A picture says in words what it shows, or has its own words in it.
    assert page.locator("svg:not([aria-label]):not(:has(text)):not(:has(title))").count() == 0
    assert _serious(page) == []
    assert said == []
    page.close()
