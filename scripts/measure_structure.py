"""Measures how much of the package a reader has to know: python scripts/measure_structure.py.

Prints one line a measure. Files are those of `lightning_gaudi`; a room is what lies at its top, and
each folder of `tools`. What runs is measured in processes of their own, on simulated cards.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.helpers.rooms import PACKAGE, ROOT, imports, is_of_stand_in, room_of, sources_of

SIMULATOR = PACKAGE / "simulator"
SHORT_LINES = 60
STANDS_UNDER_ALL = "_core"

FIT = """
import sys, threading
from pathlib import Path
files = set()
def note(frame, event, argument):
    files.add(frame.f_code.co_filename)
threading.setprofile(note)
sys.setprofile(note)
import torch, lightning.pytorch as pl
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = pl.Trainer(accelerator="hpu", devices=2, max_steps=1, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
sys.setprofile(None)
threading.setprofile(None)
if trainer.global_rank == 0:
    ours = {Path(name) for name in files if "/lightning_gaudi/" in name and Path(name).is_file()}
    ours = {path for path in ours if "simulator" not in path.parts}
    print("RAN", len(ours), sum(len(path.read_text().splitlines()) for path in ours))
"""
IMPORT = """
import sys, lightning
print("LOADED", len([name for name in sys.modules if name.split(".")[0] == "lightning_gaudi"]))
"""
ANCESTORS = """
import inspect
from lightning_gaudi.strategies import HPUDDPStrategy
ours = [c for c in HPUDDPStrategy.__mro__[1:] if c.__module__.startswith("lightning_gaudi")]
methods = [n for c in ours for n, value in vars(c).items() if inspect.isroutine(value)]
print("ANCESTORS", len(ours), len(methods))
"""


def main() -> None:
    """Print all measures."""
    num_files, lines = _run(FIT, "RAN", LIGHTNING_GAUDI_SIMULATE="2")
    print(f"a fit on two cards, to the end of step 1: {num_files} files, {lines} lines")
    print(f"import lightning loads {_run(IMPORT, 'LOADED')[0]} modules of ours")
    ancestors, methods = _run(ANCESTORS, "ANCESTORS")
    print(f"HPUDDPStrategy: {ancestors} ancestors of ours, {methods} methods")
    pairs = _pairs()
    importing = {room for room, _ in pairs}
    others = {pair for pair in pairs if pair[1] != STANDS_UNDER_ALL}
    plain = {pair for pair in others if pair[1] in importing}
    print(
        f"rooms: {len(plain)} pairs, {len(others)} with rooms that import nothing, on "
        f"{_num_floors(pairs)} floors"
    )
    plugin = [path for path in sources_of(PACKAGE) if SIMULATOR not in path.parents]
    sizes = [len(path.read_text().splitlines()) for path in plugin]
    short = sum(size < SHORT_LINES for size in sizes) / len(sizes)
    print(f"files: {len(sizes)}, of which {short:.0%} have fewer than {SHORT_LINES} lines")
    files = [*plugin, *sources_of(ROOT / "recipes")]
    print(f"lines of code without comments, docstrings and blanks: {sum(map(_num_lines, files))}")
    starts = [text for path in files for text in _docstrings(path) if text.startswith("Have ")]
    print(f"docstrings that begin with 'Have ': {len(starts)}")


def _run(source: str, mark: str, **env: str) -> list[int]:
    """Returns the numbers behind a mark that a program prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")  # a file, which the ranks start again
        path.write_text(source)
        done = subprocess.run(
            [sys.executable, str(path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line for line in done.stdout.splitlines() if line.startswith(mark)]
    if not found:
        raise SystemExit(f"{mark} was not printed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [int(word) for word in found[0].split()[1:]]


def _pairs() -> set[tuple[str, str]]:
    """Returns which rooms import which, at any place of their code."""
    found = set()
    for path in sources_of(PACKAGE):
        here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if is_of_stand_in(path) or here == f"{PACKAGE.name}.__init__":
            continue
        ours = [name for name in imports(path) if name.startswith(f"{PACKAGE.name}.")]
        found |= {(room_of(here), room_of(name)) for name in ours if _is_room(name.split(".")[1])}
    return {(a, b) for a, b in found if a != b}


def _is_room(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _num_floors(pairs: set[tuple[str, str]]) -> int:
    """The length of the longest way down."""
    below: dict[str, set[str]] = {}
    for room, imported in pairs:
        below.setdefault(room, set()).add(imported)

    def floor(room: str) -> int:
        return 1 + max((floor(each) for each in below.get(room, ())), default=0)

    return max(map(floor, below))


def _num_lines(path: Path) -> int:
    text = path.read_text()
    strings = {
        line
        for node in _documented(ast.parse(text))
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    code: set[int] = set()
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*ignored, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - strings)


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    for node in ast.walk(tree):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            yield node  # type: ignore[misc]


def _docstrings(path: Path) -> Iterator[str]:
    for node in _documented(ast.parse(path.read_text())):
        yield ast.get_docstring(node) or ""


if __name__ == "__main__":
    main()
