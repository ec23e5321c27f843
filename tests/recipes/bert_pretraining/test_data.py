import json
import sys
from itertools import pairwise

import numpy as np
import pytest

from recipes.bert_pretraining.corpora import load_documents
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.tokenized import tokenize
from recipes.bert_pretraining.unigram import unigram_reference
from recipes.common.tokenization import tokenizer_from_json, train_wordpiece
from tests.helpers.process import run_python

NO_CARD = {"LIGHTNING_GAUDI_SIMULATE": None}


def test_all_batches_have_one_shape_and_little_padding(make_data):
    data = make_data()
    loaders = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    shapes = {
        tuple(
            (name, tuple(value.shape)) for name, value in batch.items() if hasattr(value, "shape")
        )
        for loader in loaders
        for batch in loader
    }
    assert len(shapes) == 1
    tokens = sum(batch["num_tokens"] for batch in loaders[0])
    assert tokens / sum(batch["input_ids"].numel() for batch in loaders[0]) > 0.9


def test_packing_off_gives_one_sequence_a_row(make_data):
    batch = next(iter(make_data(max_sequences_per_pack=1).train_dataloader()))
    assert batch["num_sequences"] == 4
    assert batch["sequence_ids"].max() == 1


def test_splits_share_no_document(make_data):
    documents = make_data()._split(load_documents("path", make_data().hparams["path"]))
    train, validation, test = ({tuple(d) for d in part} for part in documents)
    assert (len(train), len(validation), len(test)) == (64, 8, 8)
    assert not (train & validation) | (train & test) | (validation & test)


def test_next_sentence_pairs_are_balanced_in_every_split(make_data):
    data = make_data(next_sentence=True)
    for dataset in data.datasets.values():
        counts = np.bincount(dataset.sequences[:, 4], minlength=2)
        assert abs(int(counts[0]) - int(counts[1])) <= 1


def test_a_folder_of_text_files_is_read_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("Third document. It ends here.")
    (tmp_path / "a.txt").write_text("First one.\nIt has two lines.\n\n\nSecond one.\n")
    assert load_documents("path", str(tmp_path)) == [
        ["First one.", "It has two lines."],
        ["Second one."],
        ["Third document.", "It ends here."],
    ]
    assert len(load_documents("path", str(tmp_path), max_documents=2)) == 2


def test_a_missing_corpus_is_refused_when_the_data_are_made():
    with pytest.raises(ValueError, match=r"data\.path=/no/such/file does not exist.*UTF-8"):
        BertData(source="path", path="/no/such/file")


@pytest.mark.parametrize("source", ["path", "hub"])
def test_a_source_without_its_path_is_refused(source):
    with pytest.raises(ValueError, match=rf"data\.source={source} needs data\.path"):
        BertData(source=source)


def test_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"data\.source=path, .*there is no text in it"):
        load_documents("path", str(tmp_path))


def test_the_hub_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"'some/name'.*lightning-gaudi\[recipes\]"):
        load_documents("hub", "some/name")


@pytest.fixture
def hub_data_set(tmp_path, monkeypatch) -> str:
    """A data set in a format of the hub's, on this disk."""
    datasets = pytest.importorskip("datasets", reason="pip install lightning-gaudi[recipes]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data set"
    folder.mkdir()
    lines = [{"body": "The cat sleeps. It purrs."}, {"body": " "}, {"body": "The dog\nbarks."}]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_a_data_set_of_the_hub_gives_its_documents(hub_data_set):
    assert load_documents("hub", hub_data_set, text_column="body") == [
        ["The cat sleeps.", "It purrs."],
        ["The dog barks."],
    ]


def test_a_column_that_is_not_there_is_refused(hub_data_set):
    with pytest.raises(ValueError, match=r"data\.text_column=text is not a column.*has body"):
        load_documents("hub", hub_data_set)


def test_a_data_set_that_is_not_there_is_refused(tmp_path):
    pytest.importorskip("datasets", reason="pip install lightning-gaudi[recipes]")
    missing = str(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"data\.path=.*missing with data\.subset=en could not be"):
        load_documents("hub", missing, subset="en")


def test_too_few_predictions_are_refused():
    with pytest.raises(ValueError, match=r"max_predictions_per_seq=19 is too small.*at least 20"):
        BertData(max_seq_length=132, max_predictions_per_seq=19)
    BertData(max_seq_length=132, max_predictions_per_seq=20)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_validation_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match=rf"data\.validation_share={share}"):
        BertData(validation_share=share)


def test_rows_too_short_for_text_are_refused():
    with pytest.raises(ValueError, match=r"data\.max_seq_length=6 leaves no room"):
        BertData(max_seq_length=6)


def test_too_few_documents_are_refused(tmp_path):
    (tmp_path / "two.txt").write_text("One document.\n\nAnother document.")
    data = BertData(source="path", path=str(tmp_path))
    with pytest.raises(ValueError, match=r"The corpus has 2 document\(s\), too few"):
        data.setup("fit")


def test_text_for_less_than_one_batch_is_refused(make_data):
    with pytest.raises(ValueError, match=r"less than one batch of data\.batch_size=1000"):
        make_data(batch_size=1000).train_dataloader()


def test_a_tokenizer_larger_than_the_model_is_refused(make_data, tmp_path):
    make_data().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"but data\.vocab_size is 20.*Set data\.vocab_size="):
        make_data(tokenizer=str(tmp_path), vocab_size=20)


def test_the_tokenizer_survives_a_checkpoint(make_data):
    data = make_data()
    restored = make_data()
    restored.load_state_dict(data.state_dict())
    text = "The quick river follows the unknown harbour."
    assert restored.tokenizer(text)["input_ids"] == data.tokenizer(text)["input_ids"]


def test_tokenized_corpus_gives_back_the_sentences():
    documents = [["The cat sleeps.", "It purrs."], [], ["The cat purrs."]]
    tokenizer = tokenizer_from_json(train_wordpiece(documents, 100).backend_tokenizer.to_str())
    corpus = tokenize(documents, tokenizer)
    starts = corpus.sentences_of(0)
    texts = [tokenizer.decode(corpus.tokens[a:b]) for a, b in pairwise(starts)]
    assert [text.replace(" .", ".") for text in texts] == ["the cat sleeps.", "it purrs."]
    assert corpus.num_documents == 3
    assert len(corpus.sentences_of(1)) == 1


def test_the_same_text_gives_the_same_vocabulary_in_every_process(corpus):
    source = f"""
        import json
        from recipes.bert_pretraining.corpora import load_documents
        from recipes.common.tokenization import train_wordpiece
        documents = load_documents("path", {str(corpus)!r})
        print(json.dumps(train_wordpiece(documents, 150).get_vocab(), sort_keys=True))
    """
    first, second = (run_python(source, env=NO_CARD).stdout for _ in range(2))
    vocabulary = json.loads(first)
    assert first == second
    assert len(vocabulary) == 150
    assert [vocabulary[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        *range(5)
    ]


def test_unigram_reference_is_the_loss_of_word_frequency():
    text = np.array([7, 7, 7, 8])
    reference = unigram_reference(text, np.array([8, 8]))
    assert reference.text_entropy == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert reference.target_cross_entropy == pytest.approx(-np.log(0.25))
    assert reference.strictest == reference.text_entropy


def test_unigram_reference_judges_the_targets_of_validation(make_data):
    data = make_data()
    targets = [batch["masked_labels"] for batch in data.val_dataloader()]
    labels = np.concatenate([t[t >= 0].numpy() for t in targets])
    dataset = data.datasets["validation"]
    spans = [dataset.tokens[a:b] for a, b in dataset.sequences[:, :2]]
    assert data.unigram_reference() == unigram_reference(np.concatenate(spans), labels)
