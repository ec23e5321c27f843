import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
)

from recipes.mrpc.module import Mrpc
from tests.recipes.mrpc.conftest import VOCAB_SIZE

SMALL = {"vocab_size": VOCAB_SIZE, "max_length": 96, "hidden_size": 32, "initializer_range": 0.1}


@pytest.mark.parametrize("split", ["validation", "train"])
def test_logits_are_those_of_transformers_own_forward(make_data, split):
    torch.manual_seed(0)
    module = Mrpc(**SMALL).eval()
    data = make_data()
    loader = data.val_dataloader() if split == "validation" else data.train_dataloader()
    for batch in loader:
        names = ("input_ids", "token_type_ids", "attention_mask")
        expected = module.model(**{name: batch[name] for name in names}).logits
        torch.testing.assert_close(module.logits(batch), expected, rtol=0, atol=1e-6)


def test_padding_changes_no_prediction(make_data):
    torch.manual_seed(0)
    module = Mrpc(**SMALL).eval()
    logits = {}
    for num_buckets in (1, 3):
        for batch in make_data(num_buckets=num_buckets).val_dataloader():
            for index, row in zip(batch["index"].tolist(), module.logits(batch), strict=True):
                logits.setdefault(index, []).append(row)
    assert len(logits) == 12
    for rows in logits.values():
        torch.testing.assert_close(rows[0], rows[-1], rtol=0, atol=1e-5)


def test_equal_words_of_a_new_model_attend_to_each_other():
    torch.manual_seed(0)
    module = Mrpc(**SMALL)
    first = module.model.bert.encoder.layer[0].attention.self
    # Equal words in different places and sentences: 20 words of the vocabulary, twice.
    ids = torch.randperm(VOCAB_SIZE)[:20].repeat(2)[None]
    types = torch.tensor([0] * 20 + [1] * 20)[None]
    embedded = module.model.bert.embeddings.eval()(input_ids=ids, token_type_ids=types)
    heads = 2
    query, key = (f(embedded)[0].unflatten(1, (heads, -1)) for f in (first.query, first.key))
    scores = torch.einsum("qhd,khd->hqk", query, key)[:, :20, 20:]
    assert (scores.argmax(-1) == torch.arange(20)).float().mean() > 0.9


def test_the_dropout_of_a_pretrained_model_is_kept_unless_it_is_given(pretrained):
    settings = {"name": str(pretrained), "vocab_size": VOCAB_SIZE}
    assert Mrpc(**settings).model.config.hidden_dropout_prob == 0.1
    config = Mrpc(**settings, dropout=0.3).model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.3, 0.3)


def test_pretrained_weights_are_trained_in_float32(pretrained, tmp_path):
    model = BertForSequenceClassification.from_pretrained(pretrained)
    model.bfloat16().save_pretrained(tmp_path)
    module = Mrpc(name=str(tmp_path), vocab_size=VOCAB_SIZE)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    ours, theirs = module.model.bert.pooler.dense.weight, model.bert.pooler.dense.weight
    assert torch.equal(ours, theirs.float())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 28996}, r"embeddings for 300 tokens, but data\.vocab_size is 28996"),
        ({"max_length": 512}, r"has 128 positions, but data\.max_length is 512"),
    ],
)
def test_a_pretrained_model_that_does_not_fit_the_data_is_refused(pretrained, settings, message):
    with pytest.raises(ValueError, match=rf"model\.name=\S* (has )?{message}"):
        Mrpc(**({"name": str(pretrained), "vocab_size": VOCAB_SIZE} | settings))


def test_a_model_that_cannot_be_had_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = r"model\.name=nobody/none could not be loaded.*hf download.*model\.name=FOLDER"
    with pytest.raises(ValueError, match=message):
        Mrpc(name="nobody/none")


def test_another_kind_of_model_is_refused(tmp_path):
    DistilBertModel(DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=1)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ValueError, match=r"is a distilbert model, but this recipe fine-tunes BERT"):
        Mrpc(name=str(tmp_path))


def test_a_head_for_other_labels_is_refused(tmp_path):
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, num_labels=3
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.name=\S* has been fine-tuned for 3 labels"):
        Mrpc(name=str(tmp_path), vocab_size=60)


def test_a_checkpoint_of_another_size_is_refused():
    wide, narrow = Mrpc(**SMALL), Mrpc(**(SMALL | {"hidden_size": 16}))
    checkpoint = {"state_dict": wide.state_dict()}
    wide.on_save_checkpoint(checkpoint)
    with pytest.raises(ValueError, match=r"hidden_size 32 \(configured: 16\)"):
        narrow.on_load_checkpoint(checkpoint)
    Mrpc(**SMALL).on_load_checkpoint(checkpoint)
