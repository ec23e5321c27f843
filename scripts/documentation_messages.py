"""The page of all messages: what errors and warnings of ours say, read in the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_gaudi"
_VARIES = "…"
_WARNERS = {"warn", "rank_zero_warn", "rank_zero_info", "warn_once", "say"}
_LEFT_OUT = ("simulator/stand_in", "simulator/vendor_names", "/document.py", "rules/rows_")
"""Parts of the path of what other pages are made of."""
_HELP = {"_DESCRIPTION", "_EPILOG", "_EXAMPLE", "_HEAD"}
BEFORE = """\
import os, signal
import lightning as L
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
"""
"""What stands before each example of Python."""


@dataclass(frozen=True)
class Kind:
    """Messages that mean the same: an entry of the page."""

    title: str
    of: list[str]
    """The modules that say them, or folders of modules."""
    means: str
    do: str
    example: str = ""
    """Python that raises one of them, behind `BEFORE`."""
    cards: int = 0
    """As many cards, if the example is a script for several."""
    run: str = ""
    """A command that says one of them, in place of an example."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that are set before."""

    def has(self, place: str) -> bool:
        """Tells if a module is one of its own."""
        return any(
            place == each or (each[-1] == "/" and place.startswith(each)) for each in self.of
        )

    def shown(self) -> str:
        """Returns the example as the page shows it."""
        env = "".join(f"{name}={value} " for name, value in self.env.items())
        if self.run:
            return f"```bash\n{env}{self.run}\n```"
        with_env = f"# with {env.strip()}\n" if env else ""
        return f"```python\n{with_env}{self.example.rstrip()}\n```"


@dataclass(frozen=True)
class Message:
    """Something that is said, or a part of it."""

    kind: Kind
    raised_as: str
    """The class of the error or warning; empty for a part that several of them have."""
    words: str
    """What is said; what varies is an ellipsis."""
    place: str
    """The module and line."""


def words_of(node: ast.AST) -> str:
    """Returns the words of an expression; empty if there are none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of(each) or _VARIES for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (words_of(node.left) or _VARIES) + (words_of(node.right) or _VARIES)
    return ""


def _is_sentence(words: str) -> bool:
    return len(words.split()) >= 5 and bool(re.search(r"[.:!?]($|\s)", words))


def name_of(call: ast.Call) -> str:
    """Returns the name of what is called: the class of an error, or the function that warns."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def spoken(tree: ast.Module) -> Iterator[ast.Call]:
    """Yields what raises an error of its own, or warns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and name_of(node) in _WARNERS:
            yield node


def messages() -> list[Message]:
    """Returns all messages of the package, in the order of the sources."""
    found, known = list[Message](), kinds()
    for path in sources():
        tree = ast.parse(path.read_text())
        place = path.relative_to(PACKAGE).as_posix()
        names = {id(each): name_of(call) for call in spoken(tree) for each in call.args}
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} | {
            id(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in _HELP
        }
        inner: set[int] = set()
        for node in ast.walk(tree):  # an expression comes before its parts
            if id(node) in inner or id(node) in documented or not (words := words_of(node)):
                continue
            inner |= {id(each) for each in ast.walk(node)}
            if id(node) in names or _is_sentence(words):
                line = f"{place}:{node.lineno}"
                words = " ".join(words.split())
                kind = next((each for each in known if each.has(place)), None)
                if kind is None:
                    raise ValueError(
                        f"{line} is of no kind: name it in documentation_messages.yaml"
                    )
                found.append(Message(kind, names.get(id(node), ""), words, line))
    return found


def sources() -> list[Path]:
    """Returns the files whose messages are ours."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(each in path.relative_to(PACKAGE).as_posix() for each in _LEFT_OUT)
        and path.name not in ("register.py", "patches.py")
    ]


def kinds() -> list[Kind]:
    """Returns the kinds of messages, in the order of the page."""
    path = Path(__file__).with_suffix(".yaml")
    return [Kind(**each) for each in yaml.safe_load(path.read_text())]


def page() -> str:
    """Returns the page: for each kind of message what it means, what to do, and what it says."""
    parts = [
        "# Messages",
        "",
        "All that errors and warnings of this package say, as its sources have it. Search for some",
        f"words of yours: where a message has a name or a number, {_VARIES} stands here. The ones",
        "that people meet most, and those of the vendor and of Lightning, are in",
        "[Troubleshooting](../how-to/troubleshooting.md).",
        "",
        "Each kind has an example that says one of its messages, on simulated cards, behind:",
        "",
        f"```python\n{BEFORE}```",
    ]
    every = messages()
    for kind in kinds():
        parts += ["", f"## {kind.title}", "", kind.means, "", f"**Do:** {kind.do}", ""]
        parts += [kind.shown(), "", "| says | kind |", "|---|---|"]
        rows = {each.words: each for each in every if each.kind == kind}
        for each in rows.values():
            words = re.sub(r"([|<>*_`\[\]{}\\])", r"\\\1", each.words)
            parts.append(f"| {words} | {each.raised_as} |")
    return "\n".join([*parts, ""])
