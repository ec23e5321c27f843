"""The page of all messages: what errors and warnings of ours say, read in the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_gaudi"
_VARIES = "…"
_WARNERS = {"warn", "rank_zero_warn", "rank_zero_info", "warn_once", "say"}
_LEFT_OUT = ("simulator/stand_in", "simulator/vendor_names", "/document.py", "rules/rows_")
"""Parts of the path of what other pages are made of."""
_HELP = {"_DESCRIPTION", "_EPILOG", "_EXAMPLE", "_HEAD"}
_ROOMS = {
    "_core": "Processes, ranks, the vendor's package, settings",
    "_patches": "What is changed in Lightning, torch and others",
    "accelerator.py": "The accelerator",
    "attention": "Attention",
    "callbacks": "Callbacks",
    "checkpoint": "Checkpoints",
    "compilation": "Compilation",
    "data": "Data and shapes",
    "deepspeed": "DeepSpeed",
    "distributed": "Several cards, launchers, HCCL",
    "fabric": "Fabric, and choosing a strategy",
    "inference": "Inference",
    "precision": "Precision",
    "profiler": "The profiler",
    "reliability": "What keeps a run",
    "simulator": "Simulated cards",
    "strategies": "Strategies, resuming, jobs",
    "tools": "plan, audit, doctor and the command line",
}


@dataclass(frozen=True)
class Message:
    """Something that is said, or a part of it."""

    room: str
    kind: str
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


def kind_of(call: ast.Call) -> str:
    """Returns the name of what is called: the class of an error, or the function that warns."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def spoken(tree: ast.Module) -> Iterator[ast.Call]:
    """Yields what raises an error of its own, or warns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and kind_of(node) in _WARNERS:
            yield node


def messages() -> list[Message]:
    """Returns all messages of the package, in the order of the sources."""
    found: list[Message] = []
    for path in sources():
        tree = ast.parse(path.read_text())
        place = path.relative_to(PACKAGE)
        kinds = {id(each): kind_of(call) for call in spoken(tree) for each in call.args}
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
            if id(node) in kinds or _is_sentence(words):
                line = f"{place}:{node.lineno}"
                words = " ".join(words.split())
                found.append(Message(place.parts[0], kinds.get(id(node), ""), words, line))
    return found


def sources() -> list[Path]:
    """Returns the files whose messages are ours."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(each in path.relative_to(PACKAGE).as_posix() for each in _LEFT_OUT)
        and path.name not in ("register.py", "patches.py")
    ]


def title_of(room: str) -> str:
    """Returns the heading of a room's messages."""
    return _ROOMS.get(room, room)


def page() -> str:
    """Returns the page: for each part of the package, what it says."""
    parts = [
        "# Messages",
        "",
        "All that errors and warnings of this package say, as its sources have it. Search for some",
        f"words of yours: where a message has a name or a number, {_VARIES} stands here. Each says",
        "what is wrong, what was given, what to do. The ones that people meet most, and those of",
        "the vendor and of Lightning, are in [Troubleshooting](../how-to/troubleshooting.md).",
    ]
    every = messages()
    for room in dict.fromkeys(each.room for each in every):
        parts += ["", f"## {title_of(room)}", "", "| says | kind |", "|---|---|"]
        rows = {each.words: each for each in every if each.room == room}
        for each in rows.values():
            words = re.sub(r"([|<>*_`\[\]{}\\])", r"\\\1", each.words)
            parts.append(f"| {words} | {each.kind} |")
    return "\n".join([*parts, ""])
