"""The blocks of code that pages show, and what becomes of each in `make test-docs`.

A comment on the line above a block says what is done with it, where that is not just to run it:

    <!-- not run: REASON -->
        Why nobody can run it here.
    <!-- run by: tests/X.py: WORD -->
        The test that does what it shows; it has that word. That counts as not run.
    <!-- run with: NAME -->
        Files of given/NAME lie beside it. Before Python comes its before.py, before commands its
        before.sh, in the same shell. For NAME, the files that a page shows, as in README.md. With
        ", 8 cards" as on a server with them, but simulated; Python is a script of its own there.
    <!-- run on -->
        Python has the names of the block before.
    <!-- output -->
        Of a block of text: the block before it prints these lines.

A block of Python whose fence has title="FILE.py" is that file, for the blocks behind it. One with
another title must compile, no more. A block of text whose first line begins with "$ " is a command
with the lines that it prints; "..." stands for those that are left out.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
GIVEN = Path(__file__).parent / "given"
PAGES = sorted(
    {
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("recipes/*/README.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
        ROOT / "lightning_gaudi" / "simulator" / "README.md",
    }
)
LANGUAGES = ("python", "bash", "yaml")
_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<note>[^\n]*?) -->\n(?P=indent))?```(?P<info>[^\n]*)\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    kind: str
    """What is said of it: "", "not run", "run by", "run with", "run on" or "output"."""
    words: str
    """The rest of what is said."""
    code: str
    output: list[str] = field(default_factory=list)
    """Lines that it prints."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def shell_environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a shell that has the package, on a machine without a card."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LIGHTNING_GAUDI_SIMULATE", "LIGHTNING_GAUDI_COMPILE", "PYTEST"))
    }
    here = Path(sys.executable).parent
    return env | {"PATH": f"{here}:{env['PATH']}", "PYTHONPATH": str(ROOT), **changes}


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks that are code, in order, each with the output that is shown of it."""
    text, found = page.read_text(), list[Block]()
    for match in _FENCE.finditer(text):
        kind, _, words = (match["note"] or "").partition(":")
        language, _, title = match["info"].partition(" ")
        cut = len(match["indent"])
        code = "".join(line[cut:] for line in match["code"].splitlines(keepends=True))
        if kind == "output":
            found[-1].output += code.splitlines()
        elif language == "text" and code.startswith("$ "):
            command, *shown = code.splitlines()
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page, line, "bash", "", kind, words.strip(), command[2:]))
            found[-1].output += [each for each in shown if each != "..."]
        elif language in LANGUAGES:
            title = re.sub(r'^title="(.*)"$', r"\1", title)
            line = text.count("\n", 0, match.start("code"))
            found.append(Block(page, line, language, title, kind, words.strip(), code))
    return found
