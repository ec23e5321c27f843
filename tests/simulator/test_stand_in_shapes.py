"""The vendor's tools that find changing shapes: in a loader's batches and in a model's graphs."""

from __future__ import annotations

import csv
import re

import pytest
import torch
from habana_frameworks.torch.utils import experimental
from habana_frameworks.torch.utils.experimental.detect_recompilation import get_shape
from torch import nn

from tests.helpers.forked import fork_python


def _batches(*lengths):
    return [{1: torch.zeros(2, length), 2: [torch.zeros(length)]} for length in lengths]


def _key(length):
    return ((1, (2, length)), (2, ((length,),)))


def test_shape_of_nested_batches():
    assert get_shape(torch.zeros(2)) == (2,)
    assert get_shape([torch.zeros(2), {1: (torch.zeros(1, 3),)}]) == ((2,), ((1, ((1, 3),)),))
    assert get_shape({"ids": torch.zeros(4)}) == ((hash("ids"), (4,)),)


def test_shape_tells_once_of_each_type_that_is_taken_by_hash(capsys):
    class Sample:
        pass

    get_shape([Sample(), Sample()])
    assert capsys.readouterr().out.count("get_shape: Sample is no tensor") == 1
    with pytest.raises(TypeError, match="A batch has a set, which has neither"):
        get_shape({1: {2}})


@pytest.mark.parametrize(
    ("num_shapes", "degree"),
    [(1, "no"), (2, "a little"), (6, "some"), (20, "some"), (21, "a lot of")],
)
def test_data_dynamicity_counts_shapes_and_says_how_much_they_vary(num_shapes, degree, capsys):
    lengths = [*range(1, num_shapes + 1), num_shapes, num_shapes]
    expected = {_key(length): 1 for length in lengths} | {_key(num_shapes): 3}
    assert experimental.data_dynamicity(_batches(*lengths)) == expected
    printed = capsys.readouterr().out
    assert f"{num_shapes} distinct shapes: {degree} dynamicity" in printed
    first_row = printed.splitlines()[3]
    assert str(_key(num_shapes)) in first_row, "the most frequent shape comes first"
    assert first_row.rstrip(" |").endswith("3")


def test_data_dynamicity_of_an_empty_loader(capsys):
    assert experimental.data_dynamicity([]) == {}
    assert "There are no batches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lengths", "maxlen", "length", "count"),
    [
        ((3, 4, 3, 4, 4, 3), 2, 4, 2),  # the third 4 comes before the third 3
        ((3, 4, 4, 3), 2, 3, 2),  # none has more than two: the first of the most frequent
        ((3, 4, 4), 9, 4, 2),
    ],
)
def test_const_shape_dataloader_takes_batches_of_one_shape(lengths, maxlen, length, count):
    loader = experimental.const_shape_dataloader(_batches(*lengths), maxlen)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert [get_shape(batch) for batch in loader] == [_key(length)] * count
    assert len(loader) == count


def test_const_shape_dataloader_refuses_no_batches():
    with pytest.raises(AssertionError, match="The loader has no batches"):
        experimental.const_shape_dataloader([], 2)
    with pytest.raises(ValueError, match="maxlen=0 must be at least 1"):
        experimental.const_shape_dataloader(_batches(3), 0)


LAZY = """
    import torch
    from torch import nn
    from habana_frameworks.torch.utils.experimental import detect_recompilation_auto_model

    class FirstRows(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 8)
            self.num_rows = 0

        def forward(self, x):
            self.num_rows += 1
            is_kept = torch.arange(len(x)) < self.num_rows
            return self.linear(x)[is_kept.to("hpu")].sum()

    class Static(nn.Module):
        def __init__(self, child):
            super().__init__()
            self.child = child
            self.again = child

        def forward(self, x):
            return self.again(self.child(x)) * 3

    torch.manual_seed(0)
    dynamic, static = nn.Sequential(nn.ReLU(), FirstRows()), Static(nn.Sequential(nn.Tanh()))
    for name, model in (("dynamic", dynamic), ("static", static)):
        model = detect_recompilation_auto_model(model.to("hpu"), mdlname="M", csv_out=name)
        for length in (5, 5, 6, 6):
            model(torch.rand(length, 4).to("hpu"))
        model.analyse_dynamicity()
        print(*model.raw_logs(), sep="\\n")
    """


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """What was printed of two models, and the folder of their files."""
    folder = tmp_path_factory.mktemp("watched")
    return fork_python(LAZY, env={"PT_HPU_LAZY_MODE": "1"}, cwd=folder).stdout, folder


def _rows(folder, name):
    with (folder / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_detection_tells_dynamic_operators_from_new_shapes(watched):
    rows = _rows(watched[1], "dynamic_1.csv")
    assert list(rows[0]) == [
        "Step", "Recompiling modules", "New in", "New out", "Class", "Location", "Comment",
    ]  # fmt: skip
    found = [(int(row["Step"]), row["Recompiling modules"], row["New in"]) for row in rows]
    everything = ["M/0", "M/1/linear", "M/1", "M"]
    assert found == [
        *((0, name, "True") for name in everything),
        *((1, name, "False") for name in ("M/1", "M")),
        *((2, name, "True") for name in everything),
        *((3, name, "False") for name in ("M/1", "M")),
    ]
    of_step_1 = {row["Recompiling modules"]: row["Comment"] for row in rows if row["Step"] == "1"}
    assert of_step_1["M/1"].endswith("perhaps dynamic operators")
    assert of_step_1["M"].endswith("perhaps dynamic operators of a child")
    assert (rows[1]["Class"], rows[2]["Class"]) == (
        "torch.nn.modules.linear.Linear",
        "__main__.FirstRows",
    )
    assert rows[1]["Location"].endswith("torch/nn/modules/linear.py")


def test_detection_counts_recompilations_of_each_module(watched):
    rows = _rows(watched[1], "dynamic_2.csv")
    counts = {row["Module name"]: int(row["Recompile count"]) for row in rows}
    assert counts == {"M/1": 4, "M": 4, "M/0": 2, "M/1/linear": 2}
    assert list(counts.values()) == [4, 4, 2, 2], "the most frequent come first"


def test_detection_finds_no_dynamic_operators_where_there_are_none(watched):
    """A module that is used twice has one name, and is compiled once for each shape."""
    rows = _rows(watched[1], "static_1.csv")
    assert {row["Step"] for row in rows} == {"0", "2"}
    assert {row["Comment"] for row in rows} == {"new input"}
    assert {row["Recompiling modules"] for row in rows} == {"M/child/0", "M/child", "M"}


def test_detection_prints_its_tables_and_keeps_a_line_for_each_forward_pass(watched):
    printed = watched[0]
    assert "| Module name | Recompile count |" in printed
    assert max(len(line) for line in printed.splitlines() if line.startswith(("|", "+"))) <= 120
    assert len(re.findall(r"^\[DETECT_RECOMPILE_AUTO\]\[M\] step:\d", printed, re.M)) == 8
    assert "[DETECT_RECOMPILE_AUTO][M] step:1 num_graphs:1 recompiled" in printed
    assert "    [DETECT_RECOMPILE_AUTO][M/1/linear] new input new output num_graphs:1" in printed


def test_detection_in_eager_mode_says_that_nothing_was_measured(tmp_path):
    model = experimental.detect_recompilation_auto_model(
        nn.Linear(2, 2).to("hpu"), csv_out=tmp_path / "out"
    )
    with pytest.raises(RuntimeError, match=r"has not run yet\. Call it, then analyse_dynamicity"):
        model.analyse_dynamicity()
    inputs = torch.ones(1, 2, device="hpu")
    torch.testing.assert_close(
        model(inputs), nn.functional.linear(inputs, model.weight, model.bias)
    )
    with pytest.warns(UserWarning, match=r"eager mode .*nothing was measured. Set PT_HPU_LAZY"):
        model.analyse_dynamicity()
    assert _rows(tmp_path, "out_2.csv") == []


def test_detection_refuses_a_second_time_and_several_ranks(tmp_path, monkeypatch):
    inner = experimental.detect_recompilation_auto_model(nn.Linear(2, 2).to("hpu"))
    with pytest.raises(AssertionError, match=r"Net/0 is watched already\. Watch a model once"):
        experimental.detect_recompilation_auto_model(nn.Sequential(inner))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(AssertionError, match="single process, and this is one of 4 ranks"):
        inner(torch.ones(1, 2, device="hpu"))
    with pytest.raises(AssertionError, match="data_dynamicity works in a single process"):
        experimental.data_dynamicity([])


def test_detection_refuses_arguments_without_a_hash():
    model = experimental.detect_recompilation_auto_model(nn.Identity())
    with pytest.raises(TypeError, match="unhashable type: 'set'"):
        model({1, 2})
