import pytest
import torch

from recipes.bert_pretraining.module import BertPretraining, _sum_loss
from recipes.bert_pretraining.packed import PackedDataset, collate

SMALL = {
    "vocab_size": 120,
    "max_seq_length": 96,
    "hidden_size": 32,
    "num_layers": 2,
    "dropout": 0.0,
    "initializer_range": 0.1,
}


def _unpack(dataset: PackedDataset, batch: dict) -> dict:
    """The sequences of a packed batch, one a row, with the same tokens hidden."""
    rows = []
    for b in range(len(batch["input_ids"])):
        ids = batch["sequence_ids"][b]
        for number in range(1, int(ids.max()) + 1):
            rows.append(_row_of(dataset, {n: v[b] for n, v in batch.items() if hasattr(v, "shape")},
                                number))  # fmt: skip
    unpacked = collate(rows)
    # Constants of the data set: they do not depend on how it is packed.
    for name in ("expected_predictions", "expected_pairs"):
        unpacked[name] = batch[name]
    return unpacked


def _row_of(dataset: PackedDataset, packed: dict, number: int) -> dict:
    inside = packed["sequence_ids"] == number
    start, length = int(inside.int().argmax()), int(inside.sum())
    row = dataset[0, -1]
    for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids"):
        row[name][:length] = packed[name][inside].numpy()
    row["sequence_ids"][:length] = 1
    chosen = [
        (int(position) - start, int(label))
        for position, label in zip(packed["masked_positions"], packed["masked_labels"], strict=True)
        if label >= 0 and inside[position]
    ]
    for slot, (position, label) in enumerate(chosen):
        row["masked_positions"][slot], row["masked_labels"][slot] = position, label
    row["next_sentence_labels"][0] = packed["next_sentence_labels"][number - 1]
    return row


def _losses_and_gradients(module: BertPretraining, batch: dict):
    module.zero_grad()
    outputs = module.training_step(batch, 0)
    outputs["loss"].backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return outputs, {name: gradient.clone() for name, gradient in gradients.items()}


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("next_sentence", [False, True])
def test_packed_equals_unpacked(make_data, next_sentence, gradient_checkpointing):
    data = make_data(
        next_sentence=next_sentence,
        max_seq_length=96,
        max_predictions_per_seq=15,
        max_sequences_per_pack=6,
        batch_size=4,
    )
    torch.manual_seed(0)
    module = BertPretraining(
        **SMALL, next_sentence=next_sentence, gradient_checkpointing=gradient_checkpointing
    ).train()
    packed = max(data.train_dataloader(), key=lambda batch: batch["num_sequences"])
    assert packed["num_sequences"] > 4  # rows
    labels = packed["next_sentence_labels"]
    if next_sentence:  # slots of every kind: both labels, and some that hold no sequence
        assert set(labels.unique().tolist()) == {-100, 0, 1}
    outputs, gradients = _losses_and_gradients(module, packed)
    unpacked = _unpack(data.datasets["train"], packed)
    assert len(unpacked["input_ids"]) == packed["num_sequences"]
    reference, reference_gradients = _losses_and_gradients(module, unpacked)
    torch.testing.assert_close(outputs, reference, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients, reference_gradients, rtol=0, atol=1e-5)


def test_the_encoder_agrees_with_the_whole_model_of_transformers(make_data):
    data = make_data(max_sequences_per_pack=1)
    torch.manual_seed(0)
    module = BertPretraining(**SMALL, next_sentence=True).eval()
    batch = next(iter(data.train_dataloader()))
    token_logits, pair_logits = module.logits(batch)
    expected = module.model(
        input_ids=batch["input_ids"],
        attention_mask=batch["sequence_ids"].long(),
        token_type_ids=batch["token_type_ids"],
    )
    at = batch["masked_positions"].unsqueeze(-1).expand(-1, -1, SMALL["vocab_size"])
    expected_tokens = expected.prediction_logits.gather(1, at)
    torch.testing.assert_close(token_logits, expected_tokens, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        pair_logits[:, 0], expected.seq_relationship_logits, rtol=0, atol=1e-5
    )


def test_gradient_checkpointing_changes_no_gradient(make_data):
    batch = next(iter(make_data().train_dataloader()))
    gradients = []
    for is_on in (False, True):
        torch.manual_seed(0)
        module = BertPretraining(**SMALL | {"dropout": 0.1}, gradient_checkpointing=is_on).train()
        torch.manual_seed(1)
        gradients.append(_losses_and_gradients(module, batch)[1])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_without_next_sentence_every_trained_weight_gets_a_gradient(make_data):
    module = BertPretraining(**SMALL)
    _, gradients = _losses_and_gradients(module, next(iter(make_data().train_dataloader())))
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained == set(gradients)
    assert not any("pooler" in name or "seq_relationship" in name for name in trained)


def test_empty_rows_change_neither_loss_nor_gradients(make_data):
    data = make_data()
    module = BertPretraining(**SMALL)
    dataset = data.datasets["train"]
    alone = _losses_and_gradients(module, collate([dataset[0, 0]]))
    with_empty_row = collate([dataset[0, 0], dataset[0, -1]])
    with_empty_row["expected_predictions"] /= 2
    padded = _losses_and_gradients(module, with_empty_row)
    torch.testing.assert_close(alone, padded, rtol=0, atol=1e-6)


def test_loss_counts_the_labels_that_are_there():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])
    expected = -torch.log_softmax(logits[0, :2], dim=-1).diagonal().sum()
    loss, count = _sum_loss(logits, torch.tensor([[0, 1, -100]]))
    torch.testing.assert_close(loss, expected)
    assert count == 2


def test_losses_are_divided_by_what_a_batch_has_on_average(make_data):
    data = make_data(next_sentence=True)
    module = BertPretraining(**SMALL, next_sentence=True)
    batches = list(data.train_dataloader())
    names = {"masked_labels": "expected_predictions", "next_sentence_labels": "expected_pairs"}
    for labels, expected in names.items():
        counts = [int((batch[labels] >= 0).sum()) for batch in batches]
        assert len({batch[expected] for batch in batches}) == 1  # else a graph for each
        assert batches[0][expected] == pytest.approx(sum(counts) / len(counts), rel=0.05)
    outputs = module.training_step(batches[0], 0)
    counted = [(batches[0][name] >= 0).sum() / batches[0][names[name]] for name in names]
    loss = outputs["mlm_loss"] * counted[0] + outputs["nsp_loss"] * counted[1]
    torch.testing.assert_close(outputs["loss"], loss)


def test_two_heads_begin_by_looking_at_one_segment_each():
    torch.manual_seed(0)
    module = BertPretraining(**SMALL, num_heads=4, initialization="segments")
    ids = torch.randint(5, 120, (8, 40))
    segments = (torch.arange(40) >= 20).long().expand(8, -1)
    embedded = module.model.bert.embeddings(ids, token_type_ids=segments)
    attention = module.model.bert.encoder.layer[0].attention.self
    query, key = attention.query(embedded), attention.key(embedded)
    query, key = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in (query, key))
    shares = (query @ key.mT / 8**0.5).softmax(-1)[..., 20:].sum(-1).mean((0, 2))
    assert shares[0] < 0.1
    assert shares[1] > 0.9
    assert shares[2:].sub(0.5).abs().max() < 0.2


def test_a_single_head_cannot_look_at_two_segments():
    with pytest.raises(ValueError, match=r"model.initialization=segments .* model.num_heads is 1"):
        BertPretraining(**SMALL, num_heads=1, initialization="segments")


def test_fewer_positions_than_tokens_are_refused():
    with pytest.raises(ValueError, match=r"model.num_positions=64 is less than .*_seq_length=96"):
        BertPretraining(**SMALL, num_positions=64)
    assert BertPretraining(**SMALL, num_positions=128).model.config.max_position_embeddings == 128
