import csv
import json

import pyarrow
import pytest
from pyarrow import parquet

from recipes.common.reader import Table, open_tables
from recipes.mrpc.pairs import FIELDS, Pair, read_pairs
from tests.recipes.mrpc.conftest import FIXTURES, pairs_of


def _alone(*files):
    """The pairs of these files, of which nothing is held out."""
    tables = {"test" if "test" in f.name else "train": f for f in files}
    return read_pairs(
        {split: Table([file], FIELDS, {}, split == "test") for split, file in tables.items()}, None
    )


HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@pytest.fixture(scope="module")
def msr():
    return _alone(*sorted((FIXTURES / "msr").iterdir()))


@pytest.fixture(scope="module")
def glue():
    return pairs_of(FIXTURES / "glue")


def test_the_files_of_msr_are_read_as_microsoft_writes_them(msr):
    assert {split: len(pairs) for split, pairs in msr.items()} == {"train": 48, "test": 16}
    assert msr["train"][0] == Pair(
        "The ferry left the harbour at noon with 212 passengers on board, the company said.",
        "According to the company, 212 people were on the ferry when it sailed at midday.",
        1,
    )
    # The file has a byte order mark and CRLF, of which nothing may be left.
    raw = (FIXTURES / "msr" / "msr_paraphrase_train.txt").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbfQuality\t")
    assert raw.count(b"\r\n") == 49
    assert not any("\r" in text or "\ufeff" in text for pair in msr["train"] for text in pair[:2])


def test_the_files_of_glue_hold_the_same_pairs(msr, glue):
    assert {split: len(pairs) for split, pairs in glue.items()} == {
        "train": 36,
        "validation": 12,
        "test": 16,
    }
    assert glue["train"] + glue["validation"] == msr["train"]
    assert [pair[:2] for pair in glue["test"]] == [pair[:2] for pair in msr["test"]]
    assert {pair.label for pair in glue["test"]} == {None}  # GLUE keeps them
    assert {pair.label for pair in msr["test"]} == {0, 1}


def test_quotation_marks_are_characters_like_any_other(msr):
    firsts = [pair.first for pair in msr["train"]]
    assert (
        '"We will rebuild the bridge before winter," Mayor Ines Calder told reporters'
        in (firsts[1][:76])
    )
    assert '"It was the longest night of my life, said the captain.' in firsts  # never closed


def _write(folder, suffix, rows):
    folder.mkdir(exist_ok=True)
    file = folder / f"train{suffix}"
    if suffix == ".jsonl":
        file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    elif suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        with file.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_the_columns_of_datasets_are_read_from(suffix, msr, tmp_path):
    rows = [
        {"idx": i, "sentence1": pair.first, "sentence2": pair.second, "label": pair.label}
        for i, pair in enumerate(msr["train"])
    ]
    file = _write(tmp_path, suffix, rows) / f"train{suffix}"
    assert _alone(file) == {"train": msr["train"]}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "(line|row) [23]: the label is '2'.*data.positive_label"),
        ({"label": -1}, "(line|row) [23]: the label is .*-1.*must be 1 for a paraphrase, or 0"),
        ({"sentence2": "  "}, "(line|row) [23]: the column 'sentence2' is empty. Complete the row"),
    ],
)
def test_a_wrong_row_is_named(suffix, change, message, tmp_path):
    good = {"sentence1": "It is so.", "sentence2": "So it is.", "label": 1}
    _write(tmp_path, suffix, [good, good | change, good])
    with pytest.raises(ValueError, match=rf"data\.path=.*train{suffix}, {message}"):
        _alone(tmp_path / f"train{suffix}")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_missing_columns_are_named_with_those_that_are_there(suffix, tmp_path):
    _write(tmp_path, suffix, [{"text_a": "It is so.", "text_b": "So it is.", "label": 1}])
    message = r"train\S* has no column 'sentence1', 'sentence2'\. It has 'text_a', 'text_b'"
    with pytest.raises(ValueError, match=message):
        pairs_of(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\t1\t2\tonly one", "line 2 has 4 columns, its header 5"),
        ("5\t1\t2\tone\tother", "line 2: the label is '5'"),
        ("1\t1\t2\t\tother", "line 2: the column '#1 String' is empty"),
    ],
)
def test_a_wrong_line_of_a_tsv_is_named(row, message, tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER}\n{row}\n")
    with pytest.raises(ValueError, match=rf"data\.path=.*train\.tsv.*{message}"):
        _alone(tmp_path / "train.tsv")


def test_a_training_file_without_labels_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER.replace('Quality', 'index')}\n0\t1\t2\ta\tb\n")
    with pytest.raises(ValueError, match=r"train\.tsv has no column 'Quality'"):
        pairs_of(tmp_path)


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER}\n")
    with pytest.raises(ValueError, match=r"train\.tsv has no rows"):
        pairs_of(tmp_path)


def test_another_encoding_is_named(tmp_path):
    (tmp_path / "train.tsv").write_bytes(f"{HEADER}\n1\t1\t2\tCafé\tBar\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.tsv is not UTF-8.*line 2.*0xe9.*iconv"):
        pairs_of(tmp_path)


def test_damaged_json_and_parquet_are_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "label": 1}\n[1\n')
    with pytest.raises(ValueError, match=r"train\.jsonl, line 2 is not a JSON object"):
        pairs_of(tmp_path)
    (tmp_path / "train.jsonl").rename(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet cannot be read as parquet"):
        pairs_of(tmp_path)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([1, 0], [1, 0]),
        (["1", "0"], [1, 0]),
        ([True, False], [1, 0]),
        (["yes", "No"], [1, 0]),
        ([1.0, 0.0], [1, 0]),
        (["not_equivalent", "equivalent"], [0, 1]),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_labels_may_be_written_in_many_ways(labels, expected, suffix, tmp_path):
    rows = [{"sentence1": f"a{i}", "sentence2": "b", "label": labels[i % 2]} for i in range(60)]
    pairs = pairs_of(_write(tmp_path, suffix, rows))
    assert {p.label for p in pairs["test"]} <= {0, 1}
    found = {pair.first: pair.label for split in pairs.values() for pair in split}
    assert found == {f"a{i}": expected[i % 2] for i in range(60)}


def test_names_of_labels_need_to_be_said(tmp_path):
    rows = [{"sentence1": f"a{i}", "sentence2": "b", "label": "xy"[i % 2]} for i in range(60)]
    _write(tmp_path, ".csv", rows)
    message = (
        r"train\.csv, line \d+: the label is 'y', and the labels are 'x', 'y'.*positive_label="
    )
    with pytest.raises(ValueError, match=message):
        pairs_of(tmp_path)
    pairs = pairs_of(tmp_path, "y")
    assert {p.label for split in pairs.values() for p in split if int(p.first[1:]) % 2} == {1}
    with pytest.raises(ValueError, match=r"data\.positive_label=z is none of the labels.*'x', 'y'"):
        pairs_of(tmp_path, "z")


def test_three_labels_are_refused(tmp_path):
    rows = [{"sentence1": f"a{i}", "sentence2": "b", "label": "xyz"[i % 3]} for i in range(60)]
    with pytest.raises(ValueError, match=r"there are 3: 'x', 'y', 'z'\. Paraphrases have two"):
        pairs_of(_write(tmp_path, ".csv", rows))


def test_too_few_rows_to_hold_out_are_said(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": 1}]
    with pytest.raises(ValueError, match=r"no rows for .*validation.*data\.validation_share"):
        pairs_of(_write(tmp_path, ".csv", rows), held_out_share=0.01)


def test_an_unknown_data_set_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = (
        r"data\.path=nobody/none with data\.subset=mrpc could not be loaded.*data\.source=path"
    )
    with pytest.raises(ValueError, match=message):
        open_tables("hub", "nobody/none", FIELDS, subset="mrpc")


def test_the_hub_is_read_in_the_columns_of_glue(monkeypatch):
    import datasets

    rows = {"sentence1": ["It is so."], "sentence2": ["So it is."], "idx": [0]}
    labels = {"train": 1, "validation": 0, "test": -1}
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda path, subset=None, split=None, revision=None, **_: {
            split: datasets.Dataset.from_dict({**rows, "label": [label]})
            for split, label in labels.items()
        },
    )
    splits = read_pairs(open_tables("hub", "nyu-mll/glue", FIELDS, subset="mrpc"), None)
    assert {split: pairs[0].label for split, pairs in splits.items()} == {
        "train": 1,
        "validation": 0,
        "test": None,
    }
