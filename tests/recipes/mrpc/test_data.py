import numpy as np
import pytest
import torch

from lightning_gaudi.data import describe
from recipes.common.errors import UserError
from recipes.mrpc.data import MrpcData
from tests.helpers.forked import fork_module
from tests.recipes.mrpc.conftest import FIXTURES, VOCAB_SIZE


def test_all_batches_have_one_of_the_buckets_shapes(make_data):
    data = make_data()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.predict_dataloader()):
        report = describe(loader)
        assert report.num_compilations <= 3
        lengths = {batch["input_ids"].shape for batch in loader}
        assert len(lengths) == report.num_compilations
        assert all(rows == 4 and tokens % 8 == 0 for rows, tokens in lengths)


def test_buckets_pad_less_than_one_length(make_data):
    loaders = (make_data(num_buckets=n).train_dataloader() for n in (4, 1))
    several, one = (describe(loader).padding["input_ids"] for loader in loaders)
    assert several < 0.7 * one


def test_a_pair_is_encoded_as_bert_expects(make_data):
    data = make_data()
    batch = next(iter(data.val_dataloader()))
    for row in range(4):
        pair = data.pairs["validation"][batch["index"][row]]
        kept = batch["attention_mask"][row].bool()
        expected = data.tokenizer(pair.first, pair.second, return_token_type_ids=True)
        assert batch["input_ids"][row][kept].tolist() == expected["input_ids"]
        assert batch["token_type_ids"][row][kept].tolist() == expected["token_type_ids"]
        assert batch["labels"][row] == pair.label
        assert (batch["input_ids"][row][~kept] == data.tokenizer.pad_token_id).all()
        tokens = data.tokenizer.convert_ids_to_tokens(expected["input_ids"])
        assert (tokens[0], tokens.count("[SEP]"), tokens[-1]) == ("[CLS]", 2, "[SEP]")
    assert batch["num_tokens"] == batch["attention_mask"].sum()


def test_a_long_pair_is_cut_at_the_end_of_its_longer_sentence(make_data):
    data = make_data(max_length=24)
    pair = max(data.pairs["train"], key=lambda pair: len(pair.first) + len(pair.second))
    index = data.pairs["train"].index(pair)
    data.train_dataloader()
    item = data._encoded["train"][index]
    first, second = (data.tokenizer(text, add_special_tokens=False) for text in pair[:2])
    sizes = [int((item["token_type_ids"] == i).sum()) for i in (0, 1)]
    assert sum(sizes) == 24
    assert abs(sizes[0] - 1 - sizes[1]) <= 1  # the first sentence has [CLS] besides its [SEP]
    assert item["input_ids"][1 : sizes[0] - 1].tolist() == first["input_ids"][: sizes[0] - 2]
    assert item["input_ids"][sizes[0] : -1].tolist() == second["input_ids"][: sizes[1] - 1]


def test_evaluation_has_each_pair_once_and_marks_what_only_fills(make_data):
    batches = list(make_data(batch_size=8).val_dataloader())
    real = torch.cat([batch["index"][batch["is_real"]] for batch in batches])
    assert sorted(real.tolist()) == list(range(12))
    filling = torch.cat([batch["labels"][~batch["is_real"]] for batch in batches])
    assert filling.tolist() == [-100] * 4


def test_msr_holds_out_a_share_of_the_training_pairs(make_data):
    data = make_data(path=str(FIXTURES / "msr"), validation_share=0.25)
    assert {name: len(pairs) for name, pairs in data.pairs.items()} == {
        "train": 37,
        "validation": 11,
        "test": 16,
    }
    assert len(list(data.test_dataloader())) == 4


def test_a_tokenizer_travels_in_the_checkpoint(make_data, tmp_path):
    data = make_data(vocab_size=200)
    other = make_data(vocab_size=VOCAB_SIZE)
    ids = next(iter(other.val_dataloader()))["input_ids"]
    other.load_state_dict(data.state_dict())
    loaded = next(iter(other.val_dataloader()))["input_ids"]
    expected = next(iter(data.val_dataloader()))["input_ids"]
    assert loaded.tolist() == expected.tolist()
    assert loaded.tolist() != ids.tolist()


def test_a_named_tokenizer_is_taken_and_not_kept_in_the_checkpoint(make_data, pretrained):
    data = make_data(tokenizer=str(pretrained))
    assert data.tokenizer.convert_ids_to_tokens(0) == "[PAD]"
    assert data.state_dict() == {}
    assert data.tokenizer("It is so.")["input_ids"][0] == data.tokenizer.cls_token_id


def test_test_needs_labels_and_predict_does_not(make_data):
    data = make_data()
    with pytest.raises(ValueError, match=r"glue has no label for 16 of its 16 pairs.*`predict`"):
        data.test_dataloader()
    assert len(list(data.predict_dataloader())) == 4


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_encodes_before_a_fit_what_the_fit_takes(make_data, monkeypatch, rank):
    monkeypatch.setenv("LOCAL_RANK", rank)
    data = make_data()
    data.read("fit")
    encoded, tokenizer = dict(data._encoded), data.tokenizer
    assert set(encoded) == ({"train", "validation"} if rank == "0" else set())
    data.setup("fit")
    data.train_dataloader(), data.val_dataloader()
    assert all(data._encoded[split] is each for split, each in encoded.items())
    assert tokenizer in (data.tokenizer, None)
    other = MrpcData(**data.hparams)
    other.setup("fit")
    assert len(other.train_dataloader()) == len(data.train_dataloader())


def test_a_missing_split_is_named_where_it_is_needed(make_data, tmp_path):
    (tmp_path / "dev.tsv").write_bytes((FIXTURES / "glue" / "dev.tsv").read_bytes())
    data = MrpcData("path", str(tmp_path), vocab_size=VOCAB_SIZE)
    data.setup("validate")
    with pytest.raises(ValueError, match=r"has no train split, but only validation\. Add its file"):
        data.val_dataloader()
    # A checkpoint brings the tokenizer, and then no training pairs are needed.
    data.load_state_dict(make_data().state_dict())
    assert len(data.val_dataloader()) == 1
    assert list(data.baselines("validation")) == ["always a paraphrase"]
    with pytest.raises(ValueError, match=r"has no test split, but only validation"):
        data.test_dataloader()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "path"}, r"data\.source=path needs data\.path: a file, or a folder"),
        ({"source": "hub"}, r"data\.source=hub needs data\.path: nyu-mll/glue"),
        ({"source": "path", "path": "/no/such"}, r"data\.path=/no/such does not exist"),
        ({"validation_share": 0.7}, r"data\.validation_share=0\.7 is not between"),
        ({"max_length": 5}, r"data\.max_length=5 leaves no room"),
        ({"tokenizer": "/no/such"}, r"data\.tokenizer=/no/such could not be loaded"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_started(settings, message):
    with pytest.raises(ValueError, match=message):
        MrpcData(**settings)


@pytest.mark.parametrize("vocab_size", [100, 30522])
def test_a_tokenizer_of_another_model_is_refused(pretrained, vocab_size):
    message = rf"data\.tokenizer=\S* has 300 tokens, but data\.vocab_size is {vocab_size}"
    with pytest.raises(ValueError, match=message):
        MrpcData(tokenizer=str(pretrained), vocab_size=vocab_size)


@pytest.mark.slow
def test_wrong_data_are_reported_before_a_card_is_looked_for(tmp_path):
    (tmp_path / "train.tsv").write_text("Quality\t#1 ID\t#1 String\n1\t7\tIt is so.\n")
    # There is no card: an error about it would mean that it was asked for first.
    result = fork_module(
        "recipes.mrpc",
        *("fit", "--config", "recipes/mrpc/simulated.yaml"),
        *("--data.source=path", f"--data.path={tmp_path}"),
        env={"LIGHTNING_GAUDI_SIMULATE": None},
        cwd=FIXTURES.parents[2],
        check=False,
    )
    assert result.returncode == 2
    message = "train.tsv has no column '#2 String'. It has 'Quality', '#1 ID', '#1 String'"
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_another_seed_is_another_order_and_each_epoch_too(make_data):
    def order(data, epoch=0):
        loader = data.train_dataloader()
        loader.batch_sampler.set_epoch(epoch)
        return np.concatenate([batch["index"] for batch in loader]).tolist()

    assert order(make_data()) == order(make_data())
    assert order(make_data()) != order(make_data(seed=1))
    assert order(make_data()) != order(make_data(), epoch=1)


def test_without_buckets_all_pairs_are_padded_to_the_longest_allowed(make_data):
    data = make_data(num_buckets=None, eval_batch_size=3)
    shapes = [
        {tuple(batch["input_ids"].shape) for batch in loader}
        for loader in (data.train_dataloader(), data.val_dataloader(), data.predict_dataloader())
    ]
    assert shapes == [{(4, 96)}, {(3, 96)}, {(3, 96)}]


def test_a_batch_of_evaluation_without_a_pair_is_refused(make_data):
    with pytest.raises(UserError, match=r"data\.eval_batch_size=0 must be at least 1"):
        make_data(eval_batch_size=0)
