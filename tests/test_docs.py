"""What the documentation points to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_gaudi.tools.command_line import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RECIPES = sorted(path for kind in ("*.md", "*.yaml") for path in (ROOT / "recipes").rglob(kind))
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        file = (page.parent / target) if target else page
        if "reference/api/" in str(file.resolve()) or target.startswith("api/"):
            continue  # made as the site is built, which looks at its links
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"`make ([\w-]+)`", page.read_text())
    assert set(named) <= set(targets)


def test_what_ci_runs_is_what_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    said, _, _ = (ROOT / "README.md").read_text().partition("are what CI runs")
    named = re.findall(r"`make ([\w-]+)`", said.split("\n\n")[-1])
    assert re.findall(r"^make ([\w-]+)$", script, re.MULTILINE) == named


@pytest.mark.parametrize(
    "page", [*PAGES, *RECIPES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_commands_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?:`|^)lightning-gaudi ([\w-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize(
    "page", [*PAGES, *RECIPES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_no_page_installs_from_an_index_that_has_no_release(page: Path) -> None:
    """An extra by name is fine: pip adds its packages to what is installed."""
    assert not re.findall(r"pip install (?:-\S+ )*'?lightning-gaudi(?!\[)", page.read_text())


def test_supported_releases_are_the_ones_that_the_version_script_checks() -> None:
    script = (ROOT / "scripts" / "check_lightning_versions.py").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    (requirement,) = re.findall(r'"lightning(>=[^"]*)"', project)
    checked = re.findall(r'"(2\.\d+\.\d+)"', script.split("_MALWARE")[0])
    malware = re.findall(r'"(2\.\d+\.\d+)"', script.split("_MALWARE")[1].splitlines()[0])
    assert f">={checked[0]}" in requirement
    assert all(f"!={version}" in requirement for version in malware)


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`(\w+/[\w/]*\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 20
    folders = (ROOT, ROOT / "lightning_gaudi")
    assert [name for name in named if not any((each / name).is_file() for each in folders)] == []
