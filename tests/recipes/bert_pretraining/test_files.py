import json
from pathlib import Path

import pytest
import torch

from recipes.bert_pretraining import files
from recipes.bert_pretraining.data import BertData

pyarrow = pytest.importorskip("pyarrow", reason="pip install lightning-gaudi[recipes]")
parquet = pytest.importorskip("pyarrow.parquet")

DOCUMENTS = ["The cat sleeps. It purrs.", None, " ", "The dog\nbarks."]
EXPECTED = [["The cat sleeps.", "It purrs."], ["The dog barks."]]


def _parquet(path: Path, **columns) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def _read(path: Path, **columns: str) -> list[list[str]]:
    return list(files.read(str(path), columns))


def test_a_folder_of_text_files_is_read_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.txt").write_text("Third document. It ends here.")
    (tmp_path / "a.txt").write_text("First one.\nIt has two lines.\n\n\nSecond one.\n")
    assert _read(tmp_path) == [
        ["First one.", "It has two lines."],
        ["Second one."],
        ["Third document.", "It ends here."],
    ]


def test_a_text_file_may_have_any_name(tmp_path):
    (tmp_path / "corpus").write_text("One document.\r\n\r\nÄnother one.\r\n", encoding="utf-8")
    assert _read(tmp_path / "corpus") == [["One document."], ["Änother one."]]


def test_a_parquet_file_has_a_document_in_each_row(tmp_path):
    file = _parquet(tmp_path / "x.parquet", text=DOCUMENTS, title=["a", "b", "c", "d"])
    assert _read(file) == EXPECTED
    assert _read(_parquet(tmp_path / "y.parquet", body=DOCUMENTS), text="body") == EXPECTED


def test_a_folder_of_parquet_files_is_read_in_order(tmp_path):
    _parquet(tmp_path / "train-00001.parquet", text=["Third."])
    _parquet(tmp_path / "train-00000.parquet", text=["First.", "Second."])
    assert _read(tmp_path) == [["First."], ["Second."], ["Third."]]


def test_many_rows_come_in_order(tmp_path):
    texts = [f"Document {i}." for i in range(3000)]
    assert _read(_parquet(tmp_path / "x.parquet", text=texts)) == [[text] for text in texts]


def test_the_fingerprint_changes_with_any_file(tmp_path):
    (tmp_path / "a.txt").write_text("One.")
    first = files.fingerprint(str(tmp_path))
    assert files.fingerprint(str(tmp_path)) == first
    (tmp_path / "b.txt").write_text("Two.")
    second = files.fingerprint(str(tmp_path))
    (tmp_path / "a.txt").write_text("Six.")
    assert len({str(facts) for facts in (first, second, files.fingerprint(str(tmp_path)))}) == 3


# Each is refused when the data are made: before a card is acquired.


def _refused(path: Path, match: str, **settings) -> None:
    with pytest.raises(ValueError, match=match):
        BertData(source="path", path=str(path), **settings)


def test_a_missing_path_is_refused():
    _refused(Path("/no/such/file"), r"data\.path=/no/such/file does not exist.*UTF-8.*parquet")


def test_a_folder_without_text_is_refused(tmp_path):
    (tmp_path / "notes.md").write_text("text")
    _refused(tmp_path, r"is a folder without text or tables")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_other_tables_have_a_document_in_each_row_too(suffix, tmp_path):
    texts = ["The cat sleeps. It purrs.", "", "The dog barks."]
    separator = {"csv": ",", "tsv": "\t"}.get(suffix)
    rows = [f"{i}{separator}{text}" for i, text in enumerate(texts)]
    if separator is None:
        rows = [json.dumps({"year": i, "text": text}) for i, text in enumerate(texts)]
    else:
        rows = [f"year{separator}text", *rows]
    (tmp_path / f"x.{suffix}").write_text("\n".join(rows))
    assert _read(tmp_path) == EXPECTED


def test_a_folder_of_both_kinds_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    _parquet(tmp_path / "x.parquet", text=DOCUMENTS)
    _refused(tmp_path, r"holds 1 \*\.txt and 1 \*\.parquet files.*folders of their own")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    _refused(tmp_path, "is empty: there is no text in it")


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("One.\n\nCafé.".encode("latin-1"))
    _refused(tmp_path / "a.txt", r"a\.txt is not UTF-8 text: line 3 has the byte 0xe9.*iconv")


def test_a_compressed_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\x1f\x8b\x08\x00" + bytes(range(256)))
    _refused(tmp_path / "a.txt", r"not UTF-8 text: line 1 has the byte 0x8b\. Uncompress")


def test_a_character_across_the_end_of_the_probe_is_no_error(tmp_path):
    (tmp_path / "a.txt").write_text("x" * (10 * 2**20 - 1) + "é. More.", encoding="utf-8")
    files.check(str(tmp_path / "a.txt"), {})


@pytest.mark.slow
def test_what_is_not_utf8_further_on_is_named_when_it_is_read(tmp_path):
    good = b"A line of text.\n" * (10 * 2**16 + 5000)
    (tmp_path / "a.txt").write_bytes(good + b"\xff")
    files.check(str(tmp_path), {})
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text: line 660361 has"):
        _read(tmp_path)


def test_a_document_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MAX_DOCUMENT_CHARACTERS", 100)
    (tmp_path / "a.txt").write_text("A line of text.\n" * 20)
    with pytest.raises(ValueError, match=r"more than 100 characters without a blank line.*line 7"):
        _read(tmp_path)


def test_a_column_that_is_not_there_is_refused(tmp_path):
    _parquet(tmp_path / "x.parquet", body=DOCUMENTS, title=DOCUMENTS)
    _refused(tmp_path, r"x\.parquet has no column 'text'\. It has 'body', 'title'")


def test_a_column_that_is_no_text_is_refused(tmp_path):
    _parquet(tmp_path / "x.parquet", text=[1, 2])
    _refused(tmp_path, r"x\.parquet, row 1: the column 'text' holds 1, int, not text")


def test_what_is_no_parquet_is_refused(tmp_path):
    file = _parquet(tmp_path / "x.parquet", text=DOCUMENTS)
    file.write_bytes(file.read_bytes()[:-8])
    _refused(tmp_path, r"x\.parquet cannot be read as parquet.*Fetch or write it again")


def test_a_parquet_file_with_a_damaged_page_is_named(tmp_path):
    texts = [f"Document {i}." for i in range(3000)]
    file = _parquet(tmp_path / "x.parquet", text=texts)
    content = bytearray(file.read_bytes())
    content[200:400] = b"\xff" * 200
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.parquet cannot be read as parquet"):
        _read(file)


def test_training_on_parquet_is_training_on_the_same_text(corpus, tmp_path, make_data):
    texts = corpus.read_text().split("\n\n")
    (tmp_path / "parts").mkdir()
    for number in range(2):
        part = texts[number * 40 : number * 40 + 40]
        _parquet(tmp_path / "parts" / f"{number}.parquet", body=part)
    data = make_data(path=str(tmp_path / "parts"), columns={"text": "body"})
    for ours, expected in zip(data.train_dataloader(), make_data().train_dataloader(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
