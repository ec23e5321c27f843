"""Which functions of the package and of the recipes read what others wrote, found in their code.

A function reads if it calls one of `READERS`, or makes a number of a variable of the environment.
Found by names alone: a call of another function of the same name counts, too, and is named by an
exemption.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.rooms import is_of_stand_in

ROOT = Path(__file__).parents[3]

READERS = {
    *("json.load", "json.loads", "parse_json", "untrusted.parse_json"),
    *("pickle.load", "pickle.loads", "Unpickler", "_Unpickler", "pickle.Unpickler"),
    *("torch.load", "restricted.load", "restricted.load_pickle", "restricted.instead_of"),
    *("zipfile.ZipFile", "tarfile.open", "zlib.decompress", "gzip.open", "struct.unpack"),
    *("yaml.load", "yaml.safe_load", "yaml.compose", "yaml.safe_load_all", "tomllib.load"),
    *("np.load", "np.memmap", "np.fromfile", "np.frombuffer", "numpy.frombuffer", "np.loadtxt"),
    *("torch.frombuffer", "torch.from_file", "safe_open", "safetensors.torch.load_file"),
    *("ast.literal_eval", "literal_eval", "ast.parse", "csv.reader", "csv.DictReader"),
    *("base64.b64decode", "bytes.fromhex", "open", "Image.open", "configparser.ConfigParser"),
    *("load_dataset", "datasets.load_dataset"),
}
"""Functions, as they are called."""

METHODS = {
    *("read_text", "read_bytes", "read", "readline", "readlines", "open", "unpack", "unpack_from"),
    *("recv", "recvfrom", "recv_bytes", "decode", "unpickle", "fromhex"),
}
"""Methods of files, paths, sockets and formats."""


def readers(folders: tuple[str, ...] = ("lightning_gaudi", "recipes")) -> dict[str, set[str]]:
    """What reads, as `package.module:function`, and by which calls."""
    found: dict[str, set[str]] = {}
    for path in sorted(each for folder in folders for each in (ROOT / folder).rglob("*.py")):
        if is_of_stand_in(path):
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for place, call, is_of_environment in _calls(ast.parse(path.read_text("utf-8")), "", False):
            if name := _reads(call, is_of_environment):
                found.setdefault(f"{module}:{place or '<module>'}", set()).add(name)
    return found


def _calls(
    node: ast.AST, place: str, is_of_environment: bool
) -> Iterator[tuple[str, ast.Call, bool]]:
    """Calls, the function that each is in, and whether that looks at the environment."""
    for each in ast.iter_child_nodes(node):
        inside, looks = place, is_of_environment
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{place}.{each.name}".lstrip(".")
            looks = not isinstance(each, ast.ClassDef) and "environ" in "\n".join(
                map(ast.unparse, each.body)
            )
        if isinstance(each, ast.Call):
            yield place, each, is_of_environment
        yield from _calls(each, inside, looks)


def _reads(call: ast.Call, is_of_environment: bool) -> str:
    name = ast.unparse(call.func)
    if name in ("read_integer", "variables.read_integer"):
        return "a number of the environment"
    if name in ("int", "float", "Fraction") and is_of_environment:
        return "a number of the environment"
    if name in READERS:
        return name
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        return "" if _writes(call) else f".{call.func.attr}"
    if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and "store" in name:
        return ".get of a store"
    return ""


def _writes(call: ast.Call) -> bool:
    """Whether it opens a file to write alone."""
    assert isinstance(call.func, ast.Attribute)
    values = [*call.args, *(each.value for each in call.keywords if each.arg == "mode")]
    modes = [each.value for each in values if isinstance(each, ast.Constant)]
    return call.func.attr == "open" and any(
        isinstance(mode, str) and mode[:1] in ("w", "a", "x") and "+" not in mode for mode in modes
    )
