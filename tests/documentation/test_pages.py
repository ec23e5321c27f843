"""What pages promise: that all settings are there, and that nobody has to read for long."""

from __future__ import annotations

import ast
import re
import statistics
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from lightning_gaudi import _version
from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.reliability.settings import ReliabilitySettings
from lightning_gaudi.tools.command_line import COMMANDS
from lightning_gaudi.tools.doctor import variables
from scripts import documentation_messages
from scripts.documentation_messages import name_of, spoken, words_of
from tests.test_docs import anchors

from .blocks import ROOT

DOCS = ROOT / "docs"
GENERATED = {"rules.md", "patches.md", "vendor-names.md"}


def _rows(page: str, heading: str = "") -> dict[str, list[str]]:
    """Returns the rows of the tables of a page, or of its section, by the words in their code."""
    text = (DOCS / page).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: row for row in rows for name in re.findall(r"`([^`]*)`", row[0])}


def _named_pages() -> list[tuple[str, str]]:
    """Returns title and place of each page that a message names."""
    found = []
    for path in sorted((ROOT / "lightning_gaudi").rglob("*.py")):
        if "name_page(" in (text := path.read_text()) and path.name != "_version.py":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "name_page":
                    title, place = (ast.literal_eval(each) for each in node.args)
                    found.append((title, place))
    return found


def test_a_message_names_a_page_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    named = _named_pages()
    assert len(named) > 2
    for title, place in named:
        page, _, heading = place.partition("#")
        text = (DOCS / f"{page}.md").read_text()
        assert text.startswith(f"# {title}\n")
        assert not heading or heading in anchors(DOCS / f"{page}.md"), place
    title, place = named[0]
    assert _version.name_page(title, place) == f'"{title}" in the documentation'
    monkeypatch.setattr(_version, "SITE", "https://example.org/")
    assert _version.name_page("On a Gaudi", "how-to/on-a-gaudi#train") == (
        "https://example.org/how-to/on-a-gaudi/#train"
    )


_WITHOUT_WORDS = {"SystemExit", "KeyError", "AttributeError", "StopIteration", "LookupError"}
"""What a caller of ours catches, or Python itself."""


def test_every_error_and_warning_has_an_entry() -> None:
    every = documentation_messages.messages()
    entries, page = {each.words for each in every}, documentation_messages.page()
    assert len(entries) > 600
    assert all(f"\n## {each.kind.title}\n" in page for each in every)
    lacking, silent = [], []
    for path in documentation_messages.sources():
        place = path.relative_to(documentation_messages.PACKAGE).as_posix()
        has_parts = any(each.place.startswith(f"{place}:") for each in every)
        for call in spoken(ast.parse(path.read_text())):
            said = [words for each in call.args if (words := words_of(each))]
            lacking += [each for each in said if " ".join(each.split()) not in entries]
            is_the_systems = "os.strerror" in ast.unparse(call)
            if not (said or has_parts or is_the_systems or name_of(call) in _WITHOUT_WORDS):
                silent.append(f"{place}:{call.lineno}: {ast.unparse(call)}")
    assert lacking == []
    assert silent == [], "no words to look for"


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == _version.__version__


def test_workflows_are_yaml_that_names_what_there_is() -> None:
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        assert yaml.safe_load(path.read_text()), path
        for target in re.findall(r"run: make ([\w-]+)", path.read_text()):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target


def test_every_variable_of_ours_is_in_the_reference() -> None:
    named = {name for name in _rows("reference/environment.md") if name.startswith("LIGHTNING_")}
    assert named == set(variables.OURS)


@pytest.mark.parametrize(
    ("heading", "settings"), [("compile", Compilation), ("reliability", ReliabilitySettings)]
)
def test_every_setting_is_in_the_reference_with_its_default(heading: str, settings: type) -> None:
    rows = _rows("reference/settings.md", heading)
    shown = {name: row[1].strip("`").replace('"', "'") for name, row in rows.items()}
    assert shown == {each.name: repr(each.default) for each in fields(settings)}


def test_every_command_is_in_the_reference() -> None:
    assert {name.split()[0] for name in _rows("reference/command-line.md")} == set(COMMANDS)


def _num_words(page: Path) -> int:
    """Returns how many words a page has, without its code."""
    return len(re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S).split())


def test_readme_takes_three_minutes() -> None:
    readme = ROOT / "README.md"
    assert readme.read_text().count("\n") <= 120
    assert _num_words(readme) <= 900


def test_a_page_is_read_in_one_sitting() -> None:
    sizes = {page: _num_words(page) for page in DOCS.rglob("*.md") if page.name not in GENERATED}
    assert statistics.median(size for size in sizes.values() if size >= 200) <= 900
