import csv
import json

import pyarrow
import pytest
from pyarrow import parquet

from recipes.mrpc.formats import Pair, hold_out, read_folder, read_hub
from tests.recipes.mrpc.conftest import FIXTURES

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@pytest.fixture(scope="module")
def msr():
    return read_folder(str(FIXTURES / "msr"))


@pytest.fixture(scope="module")
def glue():
    return read_folder(str(FIXTURES / "glue"))


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
    assert read_folder(str(_write(tmp_path, suffix, rows))) == {"train": msr["train"]}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "row 2: the label is .*2.*must be 1 for a paraphrase, or 0"),
        ({"label": -1}, "row 2: the label is .*-1"),
        ({"sentence2": "  "}, "'sentence2' of row 2 is '  ', not a sentence"),
    ],
)
def test_a_wrong_row_is_named(suffix, change, message, tmp_path):
    good = {"sentence1": "It is so.", "sentence2": "So it is.", "label": 1}
    _write(tmp_path, suffix, [good, good | change, good])
    with pytest.raises(ValueError, match=rf"data\.path=.*train{suffix}.*{message}"):
        read_folder(str(tmp_path))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_missing_columns_are_named_with_those_that_are_there(suffix, tmp_path):
    _write(tmp_path, suffix, [{"text_a": "It is so.", "text_b": "So it is.", "label": 1}])
    message = r"train\S* has no column 'sentence1', 'sentence2'\. It has 'text_a', 'text_b'"
    with pytest.raises(ValueError, match=message):
        read_folder(str(tmp_path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\t1\t2\tonly one", "row 1 has 4 columns, its header 5"),
        ("yes\t1\t2\tone\tother", "the label is 'yes'"),
        ("1\t1\t2\t\tother", "'#1 String' of row 1 is '', not a sentence"),
    ],
)
def test_a_wrong_line_of_a_tsv_is_named(row, message, tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER}\n{row}\n")
    with pytest.raises(ValueError, match=rf"data\.path=.*train\.tsv.*{message}"):
        read_folder(str(tmp_path))


def test_a_training_file_without_labels_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER.replace('Quality', 'index')}\n0\t1\t2\ta\tb\n")
    with pytest.raises(ValueError, match=r"train\.tsv has no column 'Quality'"):
        read_folder(str(tmp_path))


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER}\n")
    with pytest.raises(ValueError, match=r"train\.tsv has no rows"):
        read_folder(str(tmp_path))


def test_another_encoding_is_named(tmp_path):
    (tmp_path / "train.tsv").write_bytes(f"{HEADER}\n1\t1\t2\tCafé\tBar\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.tsv is not UTF-8.*Convert it"):
        read_folder(str(tmp_path))


def test_damaged_json_and_parquet_are_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "label": 1}\n[1\n')
    with pytest.raises(ValueError, match=r"train\.jsonl: line 2 is not a JSON object"):
        read_folder(str(tmp_path))
    (tmp_path / "train.jsonl").rename(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet is not a parquet file"):
        read_folder(str(tmp_path))


@pytest.mark.parametrize(("name", "state"), [("none", "is not a folder"), ("", "has none of them")])
def test_a_folder_without_pairs_says_what_is_expected(name, state, tmp_path):
    with pytest.raises(ValueError, match=rf"data\.path=\S* {state}.*train\.tsv.*msr_paraphrase"):
        read_folder(str(tmp_path / name))


def test_held_out_pairs_leave_the_training_pairs(msr):
    splits = dict(msr)
    hold_out(splits, 0.25, seed=0)
    assert (len(splits["train"]), len(splits["validation"])) == (36, 12)
    assert sorted(splits["train"] + splits["validation"]) == sorted(msr["train"])
    other = dict(msr)
    hold_out(other, 0.25, seed=1)
    assert other["validation"] != splits["validation"]


def test_an_unknown_data_set_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = (
        r"data\.path=nobody/none with data\.subset=mrpc could not be loaded.*data\.source=path"
    )
    with pytest.raises(ValueError, match=message):
        read_hub("nobody/none", "mrpc")


def test_the_hub_is_read_in_the_columns_of_glue(monkeypatch):
    import datasets

    rows = {"sentence1": ["It is so."], "sentence2": ["So it is."], "idx": [0]}
    labels = {"train": 1, "validation": 0, "test": -1}
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, subset, split, revision=None: datasets.Dataset.from_dict(
            {**rows, "label": [labels[split]]}
        ),
    )
    splits = read_hub("nyu-mll/glue", "mrpc")
    assert {split: pairs[0].label for split, pairs in splits.items()} == {
        "train": 1,
        "validation": 0,
        "test": None,
    }
