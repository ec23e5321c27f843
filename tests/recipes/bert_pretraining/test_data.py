import numpy as np
import pytest
import torch

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.unigram import unigram_reference
from recipes.common.tokenization import train_wordpiece


def test_all_batches_have_one_shape_and_little_padding(make_data):
    data = make_data()
    loaders = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    shapes = {
        tuple(
            (name, tuple(value.shape))
            for name, value in batch.items()
            if hasattr(value, "shape") and name != "is_real"  # of evaluation only
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


def test_pairs_are_balanced_in_every_split(make_data):
    data = make_data(next_sentence=True)
    for dataset in data.datasets.values():
        labels = np.concatenate([dataset[i]["next_sentence_labels"] for i in range(len(dataset))])
        is_next, is_random = (labels == 0).sum(), (labels == 1).sum()
        assert is_random > 0
        assert abs(int(is_next) - int(is_random)) <= 2


def test_evaluation_does_not_depend_on_the_epoch(make_data):
    loader = make_data(next_sentence=True).val_dataloader()
    first = list(loader)
    loader.set_epoch(3)
    for before, after in zip(first, loader, strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_ranks_evaluate_every_row_once_in_full_batches(make_data):
    data = make_data(next_sentence=True)
    batches = list(data.test_dataloader())
    assert {len(batch["input_ids"]) for batch in batches} == {4}
    assert sum(int(batch["is_real"].sum()) for batch in batches) == len(data.datasets["test"])
    for batch in batches:
        filled = ~batch["is_real"]
        assert (batch["masked_labels"][filled] == -100).all()
        assert (batch["next_sentence_labels"][filled] == -100).all()


def test_a_missing_corpus_is_refused_when_the_data_are_made():
    with pytest.raises(ValueError, match=r"data\.path=/no/such/file does not exist.*UTF-8"):
        BertData(source="path", path="/no/such/file")


@pytest.mark.parametrize("source", ["path", "hub"])
def test_a_source_without_its_path_is_refused(source):
    with pytest.raises(ValueError, match=rf"data\.source={source} needs data\.path"):
        BertData(source=source)


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


def test_text_for_less_than_one_batch_is_refused(make_data):
    with pytest.raises(ValueError, match=r"less than one batch of data\.batch_size=1000"):
        make_data(batch_size=1000).train_dataloader()


def test_a_tokenizer_larger_than_the_model_is_refused(make_data, tmp_path):
    make_data().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"but data\.vocab_size is 20.*Set data\.vocab_size="):
        make_data(tokenizer=str(tmp_path), vocab_size=20)


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
    spans = [dataset.corpus.tokens[a:b] for a, b in dataset.plan.sequences[:, :2]]
    assert data.unigram_reference() == unigram_reference(np.concatenate(spans), labels)


def test_a_tokenizer_in_a_folder_is_looked_at_when_the_data_are_made(make_data, tmp_path):
    make_data().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"but data\.vocab_size is 20.*Set data\.vocab_size="):
        BertData(tokenizer=str(tmp_path), vocab_size=20)
    with pytest.raises(ValueError, match=r"data\.tokenizer=/no/such/folder could not be loaded"):
        BertData(tokenizer="/no/such/folder")


def test_a_tokenizer_without_a_mask_is_refused_when_the_data_are_made(make_data, tmp_path):
    tokenizer = make_data().tokenizer
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"data\.tokenizer=.* has no mask_token"):
        BertData(tokenizer=str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vocab_size", 5),
        ("batch_size", 0),
        ("max_sequences_per_pack", 0),
        ("num_workers", -1),
        ("max_documents", 0),
    ],
)
def test_a_number_out_of_range_is_refused(setting, value):
    with pytest.raises(ValueError, match=rf"data\.{setting}={value} "):
        BertData(**{setting: value})


def test_text_without_a_pair_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"Document number {i}." for i in range(20)))
    data = BertData("path", str(tmp_path), cache_dir=str(tmp_path / "c"), next_sentence=True)
    data.setup("fit")
    with pytest.raises(ValueError, match=r"The train documents give no row.*more than one sente"):
        data.train_dataloader()


def test_the_tokenizer_of_a_checkpoint_comes_before_the_one_of_the_corpus(make_data):
    words = [["The quick river follows the unknown harbour."]]
    data = make_data()
    own = data.datasets["train"].corpus.tokens.copy()
    tokenizer = train_wordpiece(words, 60)
    other = make_data()
    other.tokenizer = tokenizer
    state = other.state_dict()
    data.load_state_dict(state)  # after setup, as Lightning does
    assert data.tokenizer.get_vocab() == tokenizer.get_vocab()
    tokens = data.datasets["train"].corpus.tokens
    assert tokens.max() < len(tokenizer) < own.max()
    assert data.datasets["train"].vocabulary.size == len(tokenizer)
    before = BertData(**data.hparams)
    before.load_state_dict(state)
    before.setup("fit")
    np.testing.assert_array_equal(before.datasets["train"].corpus.tokens, tokens)


def test_the_same_tokenizer_in_a_checkpoint_prepares_nothing_anew(make_data):
    data = make_data()
    datasets = data.datasets
    data.load_state_dict(make_data().state_dict())
    assert data.datasets is datasets


def test_another_tokenizer_than_that_of_the_checkpoint_is_refused(make_data, tmp_path):
    make_data().tokenizer.save_pretrained(tmp_path)
    data = make_data(tokenizer=str(tmp_path))
    data.load_state_dict(make_data().state_dict())  # the same
    early = BertData(**data.hparams)
    early.load_state_dict(make_data().state_dict())
    early.setup("fit")
    other = make_data()
    other.tokenizer = train_wordpiece([["The quick river."]], 60)
    with pytest.raises(ValueError, match=r"another vocabulary than that of data\.tokenizer="):
        data.load_state_dict(other.state_dict())
    early = BertData(**data.hparams)
    early.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"another vocabulary than that of data\.tokenizer="):
        early.setup("fit")


def test_a_tokenizer_of_a_checkpoint_that_is_too_large_is_refused(make_data):
    data = make_data(vocab_size=80)
    with pytest.raises(ValueError, match=r"but data\.vocab_size is 80.*Set data\.vocab_size="):
        data.load_state_dict(make_data(vocab_size=120).state_dict())
