"""Reads English text that every machine has: the documentation of Python and installed packages.

It is read at run time from source files, which are parsed and never imported, so nothing is
downloaded, shipped or executed. The text differs between versions of the packages. So compare a
result with a reference computed on the same text, and never with a fixed number.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_gaudi._core.cache import cache_folder
from lightning_gaudi._core.whole_file import put_whole
from lightning_gaudi.data.text import count_words, paragraphs, sentences
from lightning_gaudi.untrusted import parse_json

__all__ = ["embedded_documents", "embedded_fingerprint"]

_SKIPPED_FOLDERS = frozenset(
    (
        *("site-packages", "dist-packages", "node_modules", "_vendor", "__pycache__"),
        *("test", "tests", "testing", "idle_test", "lib2to3", "turtledemo"),
    )
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DOCSTRING_CALLS = ("add_docstr", "add_docstr_all", "add_newdoc", "add_newdoc_for_scalar_type")
_MIN_SENTENCE_WORDS = 4
_LONG_TEXT_CHARACTERS = 1500
_FORMAT = 1  # raise it when the same packages would give another text

_Entry = tuple[str, str, str]
"""Module, qualified name in it, documentation string."""


def embedded_documents(
    packages: Sequence[str] = ("torch",),
    *,
    standard_library: bool = True,
    cache_dir: Path | None = None,
) -> list[list[str]]:
    """Returns documents of English prose, each a list of sentences, without repeated sentences.

    The first call parses the sources (3 s for the standard library, 20 s with torch); later ones
    read a cache that is kept for each combination of package versions.

    Args:
        packages: names of installed packages to read, as one imports them.
        standard_library: whether to read Python's own documentation.
        cache_dir: folder of the cache. Default: `corpus` in LIGHTNING_GAUDI_CACHE_DIR, which is
            `~/.cache/lightning_gaudi` unless set.

    Returns:
        The documents, in an order that depends only on the package versions.

    Raises:
        ValueError: if a package is not installed.
    """
    key = embedded_fingerprint(packages, standard_library=standard_library)
    path = (cache_dir or cache_folder("corpus")) / f"embedded-{key}.json"
    if (cached := _read(path)) is not None:
        return cached
    documents = _build({name: _package_folder(name) for name in packages}, standard_library)
    try:
        _write(path, documents)
    except OSError as error:  # as in a container whose root cannot be written
        warnings.warn(
            f"The embedded corpus cannot be kept in {path.parent} ({error.strerror}), so each "
            "process reads the sources again, which takes up to 20 s. Set "
            "LIGHTNING_GAUDI_CACHE_DIR to a folder that can be written.",
            stacklevel=2,
        )
    return documents


def embedded_fingerprint(
    packages: Sequence[str] = ("torch",), *, standard_library: bool = True
) -> str:
    """Returns a fingerprint of the text of `embedded_documents`, without reading the text.

    Args:
        packages: as in `embedded_documents`.
        standard_library: likewise.

    Returns:
        16 hexadecimal digits that change with the versions of what is read, and with how it is.

    Raises:
        ValueError: if a package is not installed.
    """
    versions = {name: _version(name) for name in packages if _package_folder(name)}
    if standard_library:
        versions["python"] = platform.python_version()
    return hashlib.sha256(json.dumps([_FORMAT, versions], sort_keys=True).encode()).hexdigest()[:16]


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"The embedded corpus cannot read the package {name!r}: it is not installed, or not a "
            "package of Python files. Install it or name others."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _read(path: Path) -> list[list[str]] | None:
    try:
        documents = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None  # not there, or cut short by a full disk: build it again
    is_ours = isinstance(documents, list) and all(_is_document(each) for each in documents)
    return documents if is_ours else None


def _is_document(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(sentence, str) for sentence in value)


def _write(path: Path, documents: list[list[str]]) -> None:
    """Writes beside the target and moves it there, so that others see the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with put_whole(path) as file:
        file.write(json.dumps(documents).encode())


def _build(roots: dict[str, Path], standard_library: bool) -> list[list[str]]:
    """Groups the sentences of all entries by what they document, and drops repeated ones."""
    seen: set[bytes] = set()
    documents: dict[tuple[str, str], list[str]] = {}
    for module, name, text in _entries(roots, standard_library):
        # A long text is a document of its own; short ones of one class belong together.
        owner = name if len(text) > _LONG_TEXT_CHARACTERS else name.split(".")[0]
        for sentence in (s for p in paragraphs(text) for s in sentences(p)):
            # Copies of a sentence may differ in spaces and punctuation.
            letters = re.sub(r"[^a-z]", "", sentence.lower())
            digest = hashlib.blake2b(letters.encode(), digest_size=8).digest()
            if digest not in seen and count_words(sentence) >= _MIN_SENTENCE_WORDS:
                seen.add(digest)
                documents.setdefault((module, owner), []).append(sentence)
    return [document for document in documents.values() if len(document) > 1]


def _entries(roots: dict[str, Path], standard_library: bool) -> Iterator[_Entry]:
    if standard_library:
        yield from _entries_under(Path(sysconfig.get_paths()["stdlib"]), "")
        yield from (("pydoc_data.topics", name, text) for name, text in _language_topics())
    for name, root in roots.items():
        yield from _entries_under(root, name)


def _language_topics() -> list[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    return sorted(topics.items())


def _entries_under(root: Path, package: str) -> Iterator[_Entry]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")
        )
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(folder) / name
                inner = path.relative_to(root).with_suffix("").parts
                yield from _entries_of(path, ".".join((package, *inner)).lstrip("."))


def _entries_of(path: Path, module: str) -> Iterator[_Entry]:
    try:
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escapes in others' files
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # such files are templates, or data of tests
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, name = stack.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield module, name, text
        for child in reversed(getattr(node, "body", [])):
            if isinstance(child, _DOCUMENTED[1:]):
                stack.append((child, f"{name}.{child.name}".lstrip(".")))
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                stack.append((child, name))
            elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
                yield from _docstring_call(child.value, module)


def _docstring_call(call: ast.Call, module: str) -> Iterator[_Entry]:
    """Yields the text that `add_docstr(torch.abs, "...")` attaches to a function written in C."""
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if called not in _DOCSTRING_CALLS:
        return
    strings = [text for argument in call.args if (text := _leading_string(argument))]
    if strings:
        text = max(strings, key=len)
        name = next((s for s in strings if s is not text and s.isidentifier()), "")
        yield module, name, inspect.cleandoc(text.expandtabs())


def _leading_string(node: ast.AST) -> str:
    """Returns the first literal in `"..." + "..."`, `r("...").format(...)` or `(name, "...")`."""
    while True:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Tuple) and node.elts:
            node = node.elts[-1]
        elif isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Call) and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Attribute):
            return node.attr
        else:
            return ""
