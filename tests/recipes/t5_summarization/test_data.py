import csv
import json
import sys

import pytest
import torch
from rouge_score import rouge_scorer

from recipes.common.reader import Table
from recipes.t5_summarization.corpora import FIELDS, embedded_rows, marked, read_rows
from recipes.t5_summarization.data import SummarizationData
from recipes.t5_summarization.module import T5Summarization
from recipes.t5_summarization.rouge import lead, on_lines, rouge_sums
from tests.helpers.forked import fork_python
from tests.recipes.t5_summarization.conftest import FIXTURES, rows_of


def _rows(split="train"):
    return rows_of(FIXTURES, split)


def test_the_fixtures_have_the_form_of_cnn_dailymail():
    rows = [row for split in ("train", "validation", "test") for row in _rows(split)]
    assert len(rows) == len({row.id for row in rows}) == 24
    assert all(len(row.id) == 40 and row.article for row in rows)
    assert all(row.highlights.count("\n") >= 1 for row in rows)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "shards"])
def test_the_same_rows_come_from_every_format(form, tmp_path):
    rows = [{"id": r.id, "article": r.article, "highlights": r.highlights} for r in _rows()]
    if form == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "train.jsonl").write_text(text, encoding="utf-8")
    else:
        arrow = pytest.importorskip("pyarrow", reason="pip install 'lightning-gaudi[recipes]'")
        from pyarrow import parquet

        halves = (rows[:7], rows[7:]) if form == "shards" else (rows,)
        for number, half in enumerate(halves):
            name = f"train-{number:05}-of-00002" if form == "shards" else "train"
            parquet.write_table(arrow.Table.from_pylist(half), tmp_path / f"{name}.parquet")
    assert list(read_rows(Table(sorted(tmp_path.iterdir()), FIELDS, {}))) == _rows()


def test_an_article_longer_than_csv_allows_by_default_is_read(tmp_path):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["article", "highlights"], ["word " * 50_000, "words"]])
    (row,) = read_rows(Table([tmp_path / "train.csv"], FIELDS, {}))
    assert (row.id, len(row.article)) == ("1", 249_999)


def test_a_bucket_has_one_shape_and_targets_are_padded_with_ignored(make_data):
    data = make_data(batch_size=2, num_buckets=3)
    shapes = set()
    for batch in data.train_dataloader():
        shapes.add(tuple(batch["input_ids"].shape))
        assert batch["labels"].shape == (2, 24)
        assert batch["attention_mask"].shape == batch["input_ids"].shape
        assert (
            batch["num_tokens"] == batch["attention_mask"].sum() == (batch["input_ids"] > 0).sum()
        )
        for row in batch["labels"].tolist():
            length = row.index(-100) if -100 in row else 24
            assert row[length - 1] == 1  # </s>
            assert set(row[length:]) <= {-100}
            assert -100 not in row[:length]
    assert 1 < len(shapes) <= 3
    assert all(length % 8 == 0 for _, length in shapes)


def test_articles_start_with_the_prefix_and_end_with_the_end(make_data):
    data = make_data(source_prefix="summarize: ", max_source_length=40)
    rows = data.dataset("validation")
    ids = rows[0]["input_ids"]
    assert len(ids) == 40  # cut
    assert ids[-1] == data.tokenizer.eos_token_id
    text = data.tokenizer.decode(ids, skip_special_tokens=True)
    assert text.startswith("summarize: ")
    assert rows.rows[0].article.lower().startswith(text.removeprefix("summarize: ")[:30])


def test_evaluation_has_each_row_once_and_says_which_rows_only_fill(make_data):
    data = make_data(batch_size=3, num_generated=2)
    rows, generated = data.val_dataloader()
    for loader, count in ((rows, 4), (generated, 2)):
        seen = []
        for batch in loader:
            assert len(batch["input_ids"]) == 3
            seen += [i for i, real in zip(batch["indices"], batch["is_real"], strict=True) if real]
            assert (batch["labels"][~batch["is_real"]] == -100).all()
        assert sorted(seen) == list(range(count))
    chosen = data.rows_to_generate("validation")
    assert {row.id for row in chosen} < {row.id for row in _rows("validation")}
    assert len(data.test_dataloader()) == 2
    assert len(make_data(num_generated=0).val_dataloader()) == 1


def test_the_loss_is_divided_by_what_a_batch_has_on_average(make_data):
    data = make_data(batch_size=4)
    total = sum((batch["labels"] >= 0).sum() for batch in data.train_dataloader())
    for batch in data.train_dataloader():
        assert batch["mean_targets"] == pytest.approx(total.item() / 4)


def test_workers_give_the_same_batches(make_data):
    torch.multiprocessing.set_sharing_strategy("file_system")
    batches = [list(make_data(num_workers=n).train_dataloader()) for n in (0, 1)]
    for alone, with_worker in zip(*batches, strict=True):
        torch.testing.assert_close(alone, with_worker, rtol=0, atol=0)


def test_the_vocabulary_survives_a_checkpoint(make_data):
    data = make_data()
    data.train_dataloader()
    restored = make_data(path=str(FIXTURES))
    restored.load_state_dict(data.state_dict())
    text = "The ferry runs on batteries."
    assert restored.tokenizer(text)["input_ids"] == data.tokenizer(text)["input_ids"]
    assert restored.tokenizer.eos_token_id == 1


@pytest.mark.slow
def test_the_same_rows_give_the_same_vocabulary_in_every_process():
    data = SummarizationData("path", str(FIXTURES), vocab_size=200, batch_size=4)
    data.train_dataloader()
    source = f"""
        from recipes.t5_summarization.data import SummarizationData
        data = SummarizationData("path", {str(FIXTURES)!r}, vocab_size=200, batch_size=4)
        data.train_dataloader()
        print(data.state_dict()["tokenizer"])
    """
    no_card = {"LIGHTNING_GAUDI_SIMULATE": None}
    other = fork_python(source, env=no_card).stdout
    assert data.state_dict()["tokenizer"] == other.strip()


def test_embedded_articles_hold_their_summary_behind_the_mark():
    splits = {name: list(embedded_rows((), name, 0)) for name in ("train", "validation", "test")}
    assert len(splits["train"]) > 1000
    assert min(len(rows) for rows in splits.values()) > 20
    exact = [marked(row.article) == row.highlights for row in splits["train"]]
    assert sum(exact) / len(exact) > 0.97  # the others look like two sentences
    first = [lead(row.article) == row.highlights for row in splits["train"]]
    assert sum(first) == 0
    ids = [row.id for rows in splits.values() for row in rows]
    assert len(ids) == len(set(ids))
    assert list(embedded_rows((), "test", 0)) == splits["test"]


def test_rouge_is_that_of_rouge_score_with_a_sentence_a_line():
    prediction = "Boat of cartons crosses the lake. It hangs in the hall."
    reference = "Students cross the lake in a boat .\nThe boat hangs in the hall ."
    sums = rouge_sums([prediction, reference], [reference, reference])
    scorer = rouge_scorer.RougeScorer(["rouge2", "rougeLsum"], use_stemmer=True)
    lines = "Boat of cartons crosses the lake.\nIt hangs in the hall."
    expected = scorer.score(reference, lines)
    for name, score in expected.items():
        assert sums[name] == pytest.approx(100 * (score.fmeasure + 1))
    assert on_lines(prediction) == lines
    assert on_lines(reference) == reference


def test_what_has_no_file_is_held_out_of_training(tmp_path):
    rows = [{"article": f"Article {i}.", "highlights": f"Summary {i}."} for i in range(200)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "news.jsonl").write_text(text, encoding="utf-8")
    data = SummarizationData(
        "path", str(tmp_path / "news.jsonl"), validation_share=0.1, max_source_length=16
    )
    sizes = {split: len(data.dataset(split)) for split in ("train", "validation", "test")}
    assert sum(sizes.values()) == 200
    assert 10 < sizes["validation"] < 30
    assert 10 < sizes["test"] < 30


def test_a_folder_with_only_a_test_file_can_be_tested_with(tmp_path, pretrained):
    (tmp_path / "test.csv").write_text((FIXTURES / "test.csv").read_text())
    data = SummarizationData("path", str(tmp_path), tokenizer=pretrained, max_source_length=64)
    assert len(data.dataset("test")) == 4
    with pytest.raises(ValueError, match=r"has no train split, but only test\. Add its file"):
        data.train_dataloader()


def test_wrong_columns_are_refused_by_name_and_can_be_named(tmp_path):
    (tmp_path / "train.csv").write_text("articel,summary\na,b\n")
    message = r"train\.csv has no column 'article', 'highlights'\. It has.*Closest: 'articel'"
    with pytest.raises(ValueError, match=message):
        SummarizationData("path", str(tmp_path))
    SummarizationData(
        "path", str(tmp_path), columns={"article": "articel", "highlights": "summary"}
    )


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(ValueError, match=rf"data\.validation_share={share} is not between"):
        SummarizationData(validation_share=share)


@pytest.mark.parametrize("source", ["path", "hub"])
def test_a_source_without_its_path_is_refused(source):
    with pytest.raises(ValueError, match=rf"data\.source={source} needs data\.path"):
        SummarizationData(source)


def test_rows_without_text_are_left_out_with_a_warning_or_refused(tmp_path, make_data):
    rows = "article,highlights\nSome text.,A summary.\n,No article.\nNo summary., \n"
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text(rows)
    data = make_data(path=str(tmp_path), vocab_size=60)
    with pytest.warns(UserWarning, match=r"split train: 2 row\(s\) without text are left out"):
        assert len(data.dataset("train")) == 1
    (tmp_path / "validation.csv").write_text("article,highlights\n,\n")
    with pytest.raises(ValueError, match=r"split validation: there is no row with both.*1 row"):
        make_data(path=str(tmp_path), vocab_size=60).dataset("validation")


def test_longer_articles_are_cut_or_refused(make_data):
    data = make_data(max_source_length=48)
    assert max(batch["input_ids"].shape[1] for batch in data.train_dataloader()) == 48
    assert data.dataset("train").sources.num_cut > 0
    data = make_data(max_source_length=48, truncate_source=False)
    with pytest.raises(ValueError, match=r"longer than data\.max_source_length=48\. Raise it, or"):
        data.train_dataloader()


@pytest.mark.parametrize("name", ["max_source_length", "max_target_length"])
def test_lengths_without_room_for_text_are_refused(name):
    with pytest.raises(ValueError, match=rf"data\.{name}=4 leaves no room for text: at least 8"):
        SummarizationData(**{name: 4})


def test_the_hub_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    data = SummarizationData("hub", "abisee/cnn_dailymail", subset="3.0.0")
    with pytest.raises(ValueError, match=r"cnn_dailymail.*lightning-gaudi\[recipes\]"):
        data.prepare_data()


def test_a_data_set_of_the_hub_gives_its_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="pip install lightning-gaudi[recipes]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = SummarizationData("hub", str(FIXTURES), vocab_size=200, batch_size=4)
    assert [row.id for row in data.dataset("test").rows] == [row.id for row in _rows("test")]


def test_an_unknown_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.tokenizer=.*none could not be loaded"):
        SummarizationData(tokenizer=str(tmp_path / "none"))


def test_without_buckets_all_articles_are_padded_to_the_longest_allowed(make_data):
    data = make_data(num_buckets=None, eval_batch_size=3)
    loaders = [data.train_dataloader(), *data.val_dataloader(), data.predict_dataloader()]
    shapes = [{tuple(batch["input_ids"].shape) for batch in loader} for loader in loaders]
    assert shapes == [{(4, 160)}, {(3, 160)}, {(3, 160)}, {(3, 160)}]


def test_padding_can_be_learnt_as_in_transformers_example(make_data, pretrained):
    """`--ignore_pad_token_for_loss False`: the mean over all places of the summaries."""
    data = make_data(tokenizer=pretrained, loss_on_padding=True, max_target_length=160)
    batch = next(iter(data.train_dataloader()))
    assert (batch["labels"] == 0).any()
    assert (batch["labels"] >= 0).all()
    module = T5Summarization(name=pretrained, tokenizer=pretrained).eval()
    names = ("input_ids", "attention_mask", "labels")
    with torch.no_grad():
        loss = module.training_step(batch, 0)["loss"]
        expected = module.model(**{name: batch[name] for name in names}).loss
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    last = list(data.val_dataloader()[0])[-1]
    assert (last["labels"][~last["is_real"]] == -100).all()
