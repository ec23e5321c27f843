import csv
import json
import os
import warnings
from itertools import chain

import pyarrow
import pytest
from pyarrow import parquet

from recipes.common.reader import Fields, Table, files_by_split, open_tables

FIELDS = Fields(texts=("text", "title"), others=("label",), optional=("id",))
ROWS = [{"text": f"Text {i}.", "title": f"Title {i}.", "label": i % 2} for i in range(300)]


def _write(file, rows):
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif file.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        with file.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(
                lines, list(rows[0]), delimiter="," if ".csv" in file.name else "\t"
            )
            writer.writeheader()
            writer.writerows(rows)
    return file


def _texts(table):
    return [row.text("text") for row in table]


def _table(file, **columns):
    return Table([file], FIELDS, columns)


def _only(file, **columns):
    return list(_table(file, **columns))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_format_has_the_same_rows(suffix, tmp_path):
    rows = _only(_write(tmp_path / f"x.{suffix}", ROWS))
    assert [row.values["text"] for row in rows] == [row["text"] for row in ROWS]
    assert [str(row.values["label"]) for row in rows] == [str(row["label"]) for row in ROWS]
    assert {row.values["id"] for row in rows} == {None}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_one_file_is_split_by_what_is_in_its_rows(suffix, tmp_path):
    file = _write(tmp_path / f"mine.{suffix}", ROWS)

    def splits():
        tables = open_tables("path", str(file), FIELDS, held_out_share=0.1, seed=3)
        return {split: _texts(table) for split, table in tables.items()}

    first = splits()
    assert sorted(chain.from_iterable(first.values())) == sorted(row["text"] for row in ROWS)
    assert all(15 < len(first[split]) < 50 for split in ("validation", "test"))
    # Rows that are added, in front even, leave the others where they are.
    more = [{"text": f"New {i}.", "title": "New.", "label": 1} for i in range(50)]
    _write(file, [*more, *ROWS])
    for split, texts in splits().items():
        assert [text for text in texts if "New" not in text] == first[split]
    other = open_tables("path", str(file), FIELDS, held_out_share=0.1, seed=4)
    assert _texts(other["test"]) != splits()["test"]


def test_only_what_is_missing_is_held_out(tmp_path):
    for split, rows in (("train", ROWS[:200]), ("dev", ROWS[200:])):
        _write(tmp_path / f"{split}.csv", rows)
    tables = open_tables("path", str(tmp_path), FIELDS, held_out_share=0.2)
    assert _texts(tables["validation"]) == [row["text"] for row in ROWS[200:]]
    assert len(_texts(tables["test"])) + len(_texts(tables["train"])) == 200
    assert 20 < len(_texts(tables["test"])) < 60


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.csv", "train"),
        ("my_data-Training.csv", "train"),
        ("train-00000-of-00002.csv", "train"),
        ("val.csv", "validation"),
        ("dev.csv", "validation"),
        ("msr_paraphrase_test.csv", "test"),
        ("latest.csv", "train"),
        ("dev_ids.csv", "train"),
    ],
)
def test_names_tell_splits(name, split, tmp_path):
    (tmp_path / name).touch()
    assert files_by_split(str(tmp_path / name)) == {split: [tmp_path / name]}


def test_several_files_are_one_data_set(tmp_path):
    files = [str(_write(tmp_path / f"{i}.csv", ROWS[i * 150 : i * 150 + 150])) for i in (0, 1)]
    tables = open_tables("path", files, FIELDS)
    assert sum(len(_texts(table)) for table in tables.values()) == 300


def test_a_changed_file_is_read_anew_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    file = _write(tmp_path / "data" / "x.csv", ROWS[:2])
    table = Table([file], FIELDS, {})
    stamp = file.stat()
    assert _texts(table) == ["Text 0.", "Text 1."]
    _write(file, ROWS[4:6])
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert _texts(table) == ["Text 4.", "Text 5."]
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "data", file]


def test_columns_are_called_as_the_user_calls_them(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("premise,hypothesis,y\na,b,1\n")
    names = {"text": "premise", "title": "hypothesis", "label": "y"}
    assert dict(_only(file, **names)[0].values) == {
        "text": "a",
        "title": "b",
        "label": "1",
        "id": None,
    }
    message = r"x\.csv has no column 'texts'.*'premise', 'hypothesis', 'y'.*data\.columns\.text="
    with pytest.raises(ValueError, match=message):
        _only(file, **(names | {"text": "texts"}))
    with pytest.raises(ValueError, match=r"no column 'premis'.*Closest: 'premise'"):
        _only(file, **(names | {"text": "premis"}))
    with pytest.raises(ValueError, match=r"data\.columns: 'txt' is none of text.*Closest: 'text'"):
        open_tables("path", str(file), FIELDS, columns={"txt": "premise"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\ufefftext,title,label\na,b,1\n", ("a", "b")),
        ('text,title,label\r\n"a, ""b""\nc",NA,1\r\n\r\n', ('a, "b"\nc', "NA")),
        ("text;title;label\na,b;null;1\n", ("a,b", "null")),
    ],
)
def test_csv_is_read_as_spreadsheets_write_it(content, expected, tmp_path):
    (tmp_path / "x.csv").write_bytes(content.encode())
    (row,) = _only(tmp_path / "x.csv")
    assert (row.text("text"), row.text("title")) == expected


GOOD = "text,title,label\na,b,1\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", GOOD + "\na,b\n", r"line 4 has 2 columns, its header 3"),
        ("x.csv", GOOD + '"a\n",b,0\na,b,1,0\n', r"line 5 has 4 columns, its header 3"),
        ("x.csv", "text,title,label\na,b,1,0\n", r"line 2 has 4 columns, its header 3"),
        ("x.csv", "text,text,label\n", r"has two columns 'text'"),
        ("x.csv", "", r"has no rows"),
        ("x.csv", GOOD.encode() + b"caf\xe9,b,1\n", r"line 3 has the byte 0xe9.*iconv"),
        ("x.csv", GOOD.encode("utf-16"), r"it is UTF-16\. Save it as UTF-8"),
        ("x.jsonl", '{"text": "a"}\n\n{"text":\n', r"line 3 is not a JSON object"),
        ("x.jsonl", '{"text": "a"}\n[1]\n', r"line 2 is not a JSON object, but \[1\]"),
        ("x.json", '[{"text": "a"}, 5]', r"row 2 is not a JSON object, but 5"),
        # With which pyarrow ends the process.
        ("x.jsonl", 'null\n{"text": "a"}\n', r"line 1 is not a JSON object, but None"),
        ("x.jsonl", b'\xef\xbb\xbfnull\n{"text": "a"}\n', r"line 1 is not a JSON object, but None"),
        ("x.jsonl", 'NaN\n{"text": []}\n{"text": "c"}', r"line 1 is not a JSON object, but nan"),
        ("x.json", '[null, {"text": "a"}]', r"row 1 is not a JSON object, but None"),
        # What stands beside these would be read with quotes.
        ("x.jsonl", '{"text": "a"}\n{"text": 3}\n', r"line 2: 'text' is 3, a number, but a text"),
        (
            "x.json",
            '[{"text": "a"}, {"text": 3}]',
            r"row 2: 'text' is 3, a number, but a text",
        ),
        ("x.jsonl", '{"text": "a"}{"text": "b"}\n', r"line 1 is not a JSON object: .*one a line"),
        ("x.jsonl", "", r"has no rows"),
        ("x.json", "", r"has no rows"),
        ("x.json", b'[{"text": "caf\xe9"}]', r"line 1 has the byte 0xe9.*iconv"),
        ("x.json", '[{"text": "a"},', r"is not JSON: .*line 1"),
        ("x.parquet", "no parquet", r"cannot be read as parquet.*Fetch or write it again"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(name, content, message, tmp_path):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"data\.path=\S*{name}.*{message}"):
        _only(file)


def test_values_of_two_kinds_are_named_with_both_lines(tmp_path):
    lines = (json.dumps({"text": "a", "label": label}) for label in (1, None, "1"))
    (tmp_path / "x.jsonl").write_text("\n\n".join(lines))
    with pytest.raises(ValueError, match=r"line 5: 'label' is '1', a text, but a number in line 1"):
        _only(tmp_path / "x.jsonl")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_values_that_are_missing_or_no_text_are_named(suffix, tmp_path):
    rows = [{"text": text, "title": 5, "label": 1} for text in ("a", None)]
    _, row = _only(_write(tmp_path / f"x.{suffix}", rows))
    where = "line" if suffix == "jsonl" else "row"
    with pytest.raises(ValueError, match=rf"{where} 2: the column 'text' is empty\. Complete"):
        row.needed_text("text")
    with pytest.raises(ValueError, match=rf"{where} 2: the column 'title' holds 5, int, not text"):
        row.text("title")


def test_json_beside_a_table_describes_it(tmp_path):
    file = _write(tmp_path / "mine.csv", ROWS)
    (tmp_path / "dataset_info.json").write_text('{"license": "mit"}')
    assert files_by_split(str(tmp_path)) == {"train": [file]}


def test_tables_read_in_turns_leave_warnings_as_they_were(tmp_path):
    tables = [iter(_table(_write(tmp_path / name, ROWS))) for name in ("a.csv", "b.csv")]
    before = warnings.filters[:]
    one, other = tables
    next(one), next(other)
    assert [*one, *other]
    assert warnings.filters == before


def test_a_folder_that_cannot_be_understood_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no/such does not exist\. Name a file, several, or a f"):
        files_by_split(str(tmp_path / "no/such"))
    (tmp_path / "notes.md").touch()
    with pytest.raises(ValueError, match=r"is a folder without such files"):
        files_by_split(str(tmp_path))
    with pytest.raises(ValueError, match=r"notes\.md is of no kind that is read"):
        files_by_split(str(tmp_path / "notes.md"))
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(ValueError, match=r"files of several kinds, \.jsonl, \.csv, of which none"):
        files_by_split(str(tmp_path))
