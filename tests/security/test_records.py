"""What another process has noted has the types that it should have, or is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi.data import embedded
from lightning_gaudi.tools.audit.merging import Audit
from lightning_gaudi.tools.audit.record import Line, Loader, Record, Step, read_all


def _record() -> Record:
    line = Line("host_sync", "item", "train.py", 3, "main", "", "training", "model", False)
    line.add(1, 0, "detail")
    shapes = [{"x": [4, 2]}]
    loader = Loader("Rows", "train.py", 9, "collate", "training", shapes, [0, 0], lengths={3: 2})
    return Record(rank=1, world_size=2, steps=[Step()] * 3, lines=[line], loaders=[loader])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    _record().write(tmp_path)
    assert read_all(tmp_path) == [_record()]


_WRONG: dict[str, Any] = {
    "rank": [True, "1", 1.0, None, -1, 2**16, 10**30, [], {}],
    "world_size": [0, 10**9, 2**64, "2", {}],
    "is_lazy": [0, "no", None],
    "card": [3, None, ["x"]],
    "steps": [3, None, {}, [3], [{"launches": "x"}], [{"other": 1}], "abc"],
    "lines": [[{}], [{"kind": 3}], {"kind": "x"}],
    "loaders": [[{}], [[]], 1],
    "memory": [[], {"a": "b"}, {"a": None}],
    "\x1b[2J": [1],
}
_TEXTS = ("", "{}", "[]", "1", "null", "[" * 100_000, '{"a":' * 100_000, "NaN", '{"rank": 1e999}')


def _left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audit(("python",), 0, read_all(folder))
    assert (audit.num_steps, audit.is_ended, audit.missing_ranks) == (0, False, [])
    said = capsys.readouterr().err
    assert said.startswith("lightning-gaudi: record-1-0.json, what a process has noted, is left")
    assert said.removesuffix("\n").isprintable()
    assert len(said) < 2200


@pytest.mark.parametrize("name", _WRONG)
def test_a_record_of_other_types_is_left_out(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _record().write(tmp_path)
    (path,) = tmp_path.iterdir()
    values = json.loads(path.read_text())
    for wrong in _WRONG[name]:
        path.write_text(json.dumps({**values, name: wrong}))
        _left_out(tmp_path, capsys)


@pytest.mark.parametrize("text", _TEXTS)
def test_a_record_that_is_none_is_left_out(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (text.encode(), text.encode() + b"\xff"):
        (tmp_path / "record-1-0.json").write_bytes(data)
        _left_out(tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "value"), [("batches", [1]), ("batches", [-1]), ("lengths", {"x": 1})]
)
def test_a_loader_of_shapes_that_are_not_there_is_left_out(
    tmp_path: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _record().write(tmp_path)
    (path,) = tmp_path.iterdir()
    values = json.loads(path.read_text())
    values["loaders"][0][name] = value
    path.write_text(json.dumps(values))
    _left_out(tmp_path, capsys)


@pytest.mark.parametrize("text", ['[["a"], [NaN]]', "true", '[["a"], "b"]', "[[1]]", "[" * 100_000])
def test_a_corpus_in_the_cache_is_lists_of_texts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "embedded.json"
    path.write_text(text)
    assert embedded._read(path) is None
    path.write_text('[["A sentence."], []]')
    assert embedded._read(path) == [["A sentence."], []]
