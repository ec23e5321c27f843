"""What a program has changed outside of itself reaches workers that are not forked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.process import run

pytestmark = pytest.mark.slow

LIBRARY = """
import enum
class Odd:
    def __getattribute__(self, name): raise RuntimeError(name)
class Meta(type):
    def __setattr__(self, name, value): raise TypeError(name)
class Fixed(metaclass=Meta):
    number = id(object())
    odd = Odd()
class Color(enum.Enum):
    RED = 1
odd = Odd()
FLAG = 0
TABLE = {"first": 1}
def value(): return 1
class Reader:
    size = 1
    def read(self): return 1
"""
PROGRAM = """
import sys, types
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
import library
from lightning_gaudi.data import worker_context

{changes}

class Data(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return [float(each) for each in {value}]

loader = DataLoader(
    Data(), batch_size=None, num_workers=1, multiprocessing_context={context}, collate_fn=list
)
print("FOUND", list(loader)[-1])
"""
OPERATOR = """
@torch.library.custom_op("own::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@double.register_fake
def _(x): return torch.empty_like(x)
"""
MODULE = """
made = types.ModuleType("made_at_run_time")
exec("class Item:\\n    size = 5.0", made.__dict__)
sys.modules["made_at_run_time"] = made
item = made.Item()
"""
CASES = {
    "an operator by its name": (OPERATOR, "torch.ops.own.double(torch.ones(()))"),
    "an operator by its definition": (OPERATOR, "double(torch.ones(()))"),
    "an operator of torch": ("add = torch.ops.aten.add.Tensor", "add(torch.ones(()), 1)"),
    "a packet of operators": ("packet = torch.ops.aten.mul", "packet(torch.ones(()), 3)"),
    "a module that was made": (MODULE, "item.size"),
    "a flag": ("library.FLAG = 7", "library.FLAG"),
    "a table": ("library.TABLE['second'] = 2", "sum(library.TABLE.values())"),
    "an attribute of a class": ("library.Reader.size = 3", "library.Reader.size"),
    "a function": ("library.value = lambda: 9", "library.value()"),
    "a method": ("def read(self): return 4\nlibrary.Reader.read = read", "library.Reader().read()"),
    "a constant of a package": (
        "import packaging.version as versions\nversions.VERSION_PATTERN = 'x'",
        "len(versions.VERSION_PATTERN)",
    ),
}
ERRORS = {
    "an operator of a library": (
        "lib = torch.library.Library('own', 'DEF')\nlib.define('triple(Tensor x) -> Tensor')",
        "torch.ops.own.triple(torch.ones(()))",
        "'_OpNamespace' 'own' object has no attribute 'triple'",
    ),
    "errors of numpy": (
        "np.seterr(all='raise')",
        "np.float64(1) / np.float64(0)",
        "FloatingPointError: divide by zero",
    ),
}


def _run(folder: Path, changes: str, value: str, context: str) -> str:
    (folder / "library.py").write_text(LIBRARY)
    program = folder / "program.py"
    program.write_text(PROGRAM.format(changes=changes, value=value, context=context))
    done = run([sys.executable, str(program)], cwd=folder, check=False, timeout=200)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """What our worker and a forked one saw of each case."""
    changes = "\n".join(each for each, _ in CASES.values())
    value = f"({', '.join(each for _, each in CASES.values())},)"
    results = []
    for context in ("worker_context()", "'fork'"):
        text = _run(tmp_path_factory.mktemp("program"), changes, value, context)
        lines = [line for line in text.splitlines() if line.startswith("FOUND")]
        assert lines, text
        numbers = json.loads(lines[0].removeprefix("FOUND"))
        results.append(dict(zip(CASES, numbers, strict=True)))
    return results


@pytest.mark.parametrize("name", CASES)
def test_workers_know_what_forked_ones_do(name: str, found: list[dict[str, float]]) -> None:
    ours, forked = found
    assert ours[name] == forked[name]


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_follow_is_named(name: str, tmp_path: Path) -> None:
    changes, value, message = ERRORS[name]
    text = _run(tmp_path, changes, f"({value},)", "worker_context()")
    assert message in text
    if name == "an operator of a library":
        assert "they import modules anew" in text
        assert "or in worker_init_fn; or pass num_workers=0" in text


def test_what_no_worker_can_unpickle_is_named_and_not_a_worker_that_exited(tmp_path: Path) -> None:
    changes = (
        "def fail(): raise LookupError('no such registry')\n"
        "class Odd:\n"
        "    def __reduce__(self): return library.__getattribute__('value').__class__, ()\n"
        "odd = Odd()"
    )
    text = _run(tmp_path, changes, "(len(str(odd)),)", "worker_context()")
    assert "A DataLoader worker cannot take over the data set, or its functions: TypeError" in text
    assert "exited unexpectedly" not in text
