"""What the site has beside `docs/`: hooks of MkDocs, named in mkdocs.yml.

Pages that lie beside what they are about (recipes, examples, the simulator) become pages of the
site, as does the notebook, with its outputs; the API reference is made of the public names and
their docstrings; a link to a source file leads to the repository, once its address is known.
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

from lightning_gaudi._version import REPOSITORY, SITE
from scripts import documentation_messages

ROOT = Path(__file__).parents[1]
BESIDE = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CODE_OF_CONDUCT.md": "reference/code-of-conduct.md",
    "CONTRIBUTING.md": "how-to/contribute.md",
    "SECURITY.md": "reference/security.md",
    "lightning_gaudi/simulator/README.md": "explanation/simulator.md",
    "examples/README.md": "tutorials/examples.md",
    "benchmarks/README.md": "reference/benchmarks.md",
    "benchmarks/results/README.md": "reference/benchmark-results.md",
    "README.md": "index.md",
    **{
        f"recipes/{name}/README.md": f"recipes/{name.replace('_', '-')}.md"
        for name in sorted(path.parent.name for path in ROOT.glob("recipes/*/README.md"))
    },
}
"""Of the repository, what is a page of the site, and which."""
PACKAGES = (
    "lightning_gaudi.callbacks",
    "lightning_gaudi.data",
    "lightning_gaudi.inference",
    "lightning_gaudi.attention",
    "lightning_gaudi.compilation",
    "lightning_gaudi.strategies",
    "lightning_gaudi.precision",
    "lightning_gaudi.checkpoint",
    "lightning_gaudi.profiler",
    "lightning_gaudi.fabric.strategies",
    "lightning_gaudi.fabric.precision",
    "lightning_gaudi.simulator",
    "lightning_gaudi.simulator.rules",
    "lightning_gaudi.tools.plan",
    "lightning_gaudi.tools.audit",
    "lightning_gaudi.tools.doctor",
    "lightning_gaudi",
)
"""Whose public names the API reference has; the last one offers names of the others."""
NOTEBOOK = "tutorials/notebook"
"""Without the ending: that of the notebook, or of its page."""
_API = "reference/api"
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^):\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def public_names(package: str) -> list[str]:
    """Returns what a package offers by name, its modules apart."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        name for name in dir(module) if getattr(getattr(module, name), "__module__", None)
    ]
    ours = (name for name in names if not name.startswith("_"))
    return sorted(
        (name for name in ours if not inspect.ismodule(getattr(module, name))), key=str.lower
    )


def definition(package: str, name: str) -> str:
    """Returns where the source has what a package offers: "module.name"."""
    found = getattr(importlib.import_module(package), name)
    module, own = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
    if own and str(module).startswith("lightning_gaudi"):
        return f"{module}.{own}"
    assigned = re.compile(rf"^{name}(: [^=]*)? = ", re.MULTILINE)
    for module, loaded in sorted(sys.modules.items()):  # of a value
        is_held = module.startswith("lightning_gaudi.") and vars(loaded).get(name) is found
        if is_held and assigned.search(inspect.getsource(loaded)):
            return f"{module}.{name}"
    return f"{package}.{name}"


def api_pages() -> dict[str, str]:
    """Returns the pages of the API reference: by the file, its text."""
    pages, known = {}, dict[str, str]()
    rows = [
        "# API",
        "",
        "Every public name, from its docstring.",
        "",
        "| package | names |",
        "|---|---|",
    ]
    for package in PACKAGES:
        doc = inspect.getdoc(importlib.import_module(package)) or ""
        # Who searches for words finds pages that explain them first.
        head = "---\nsearch:\n  boost: 0.3\n---\n"
        parts = [f"{head}# {package}\n\n{doc.partition(chr(10) * 2)[0]}\n"]
        for name in public_names(package):
            place = definition(package, name)
            if place in known:
                parts.append(
                    f"## {name} {{#{package}.{name}}}\n\nIs [`{known[place]}`][{place}].\n"
                )
                continue
            known[place] = f"{package}.{name}"
            parts.append(f"::: {place}\n    options:\n      heading: {name}\n")
        file = f"{_API}/{package.removeprefix('lightning_gaudi.') or package}.md"
        pages[file] = "\n".join(parts)
        rows.append(f"| [`{package}`]({posixpath.basename(file)}) | {len(parts) - 1} |")
    pages[f"{_API}/index.md"] = "\n".join(rows)
    return pages


def on_config(config: Any) -> Any:
    """Tells the site its address, and that of the sources, where they are known."""
    config["site_url"] = SITE or None
    config["repo_url"] = REPOSITORY or None
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not below `docs/`."""
    for source, page in BESIDE.items():
        original = (ROOT / source).read_text()
        text = _relinked(original, ROOT / source, page)
        files.append(File.generated(config, page, content=text))
        for picture in set(_PICTURE.findall(original)):
            place = posixpath.join(posixpath.dirname(page), picture)
            found = (ROOT / source).parent / picture
            files.append(File.generated(config, place, abs_src_path=str(found)))
    notebook, _ = MarkdownExporter().from_filename(str(ROOT / "docs" / f"{NOTEBOOK}.ipynb"))
    made = api_pages() | {
        "reference/messages.md": documentation_messages.page(),
        f"{NOTEBOOK}.md": notebook,
    }
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Has links to files of the repository lead to their pages, or to the repository."""
    source = page.file.src_uri
    if source in BESIDE.values() or source.startswith((_API, "reference/messages")):
        return markdown
    return _relinked(markdown, ROOT / "docs" / source, source)


def _relinked(text: str, source: Path, page: str) -> str:
    """Returns a page whose links lead from where it is on the site to where others are."""

    def replaced(match: re.Match[str]) -> str:
        words, target, heading = match[1], match[2], match[3] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        place = os.path.relpath(os.path.normpath(source.parent / target), ROOT)
        known = BESIDE.get(place) or BESIDE.get(f"{place}/README.md")
        if place.startswith("docs/"):
            known = place.removeprefix("docs/").replace(".ipynb", ".md")
        if known is not None:
            return f"[{words}]({posixpath.relpath(known, posixpath.dirname(page))}{heading})"
        if REPOSITORY:
            return f"[{words}]({REPOSITORY}blob/main/{place}{heading})"
        return words if "`" in words else f"{words} (`{place}`)"

    return _LINK.sub(replaced, text)
