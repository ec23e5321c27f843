import pytest
import torch
from lightning.pytorch import Trainer

from recipes.bert_pretraining.fill_mask import MaskedLines, lines
from recipes.bert_pretraining.module import BertPretraining
from recipes.bert_pretraining.rows import RowShape

pytestmark = pytest.mark.filterwarnings("ignore:You are using a custom batch sampler:UserWarning")

MODEL = {"vocab_size": 120, "max_seq_length": 48, "hidden_size": 32, "initializer_range": 0.3}


def _predict(data, module, accelerator="cpu"):
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return [mask for batch in trainer.predict(module, data) for mask in batch]


@pytest.mark.parametrize("accelerator", ["cpu", "hpu"])
def test_candidates_are_those_of_the_whole_model_of_transformers(
    make_data, tmp_path, accelerator, capsys
):
    path = tmp_path / "masked.txt"
    text = ["The quick [MASK] follows the silver harbour.", "The [MASK] [MASK] builds."]
    path.write_text("\n\n".join(text) + "\n")
    torch.manual_seed(0)
    module = BertPretraining(**MODEL, num_candidates=3).eval()
    data = make_data(predict_path=str(path), batch_size=4)
    found = _predict(data, module, accelerator)
    assert len(found) == 3
    tokenizer, number = data.tokenizer, 0
    for line in text:
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        logits = module.model.cpu()(ids).prediction_logits[0].softmax(-1)
        for place in (ids[0] == tokenizer.mask_token_id).nonzero().flatten():
            values, best = logits[place].topk(3)
            names, probabilities = zip(*found[number].candidates, strict=True)
            assert list(names) == tokenizer.convert_ids_to_tokens(best.tolist())
            assert probabilities == pytest.approx(values.tolist(), abs=1e-5)
            assert found[number].label is None
            number += 1
    assert found[0].before == "the quick"
    assert found[0].after.startswith("follows the silver")
    printed = capsys.readouterr().out
    assert "the quick [____] follows the silver" in printed
    assert printed.count("->") == 3


def test_held_out_text_is_predicted_with_its_labels_and_no_more(make_data):
    torch.manual_seed(0)
    module = BertPretraining(**MODEL)
    data = make_data(batch_size=3)  # the last batch is filled up
    found = _predict(data, module)
    dataset, tokenizer = data.datasets["test"], data.tokenizer
    rows = [dataset[0, index]["masked_labels"] for index in range(len(dataset))]
    labels = [int(label) for row in rows for label in row if label >= 0]
    assert len(rows) % 3
    assert [mask.label for mask in found] == tokenizer.convert_ids_to_tokens(labels)
    assert all(len(mask.candidates) == 5 for mask in found)
    assert all("[CLS]" not in mask.before and "[SEP]" not in mask.after for mask in found)
    assert f"(was: {found[0].label})" in lines(found[:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The [MASK].\nThe river.", r"predict_path=.*, line 2 has no \[MASK\]"),
        ("\n", r"has no line with \[MASK\]"),
        ("[MASK] " * 9, r"line 1 has 11 tokens and 9 masks, but .*max_predictions_per_seq=8"),
        ("[MASK]" + " the" * 60, r"line 1 has 63 tokens and 1 masks, but .*max_seq_length=48"),
    ],
)
def test_a_line_that_does_not_fit_is_named(make_data, tmp_path, text, message):
    path = tmp_path / "masked.txt"
    path.write_text(text)
    tokenizer = make_data().tokenizer
    with pytest.raises(ValueError, match=message):
        MaskedLines(str(path), tokenizer, RowShape(48, 8, 4))


def test_a_missing_file_is_named_at_once(make_data):
    with pytest.raises(ValueError, match=r"data.predict_path=/none.txt does not exist"):
        make_data(predict_path="/none.txt")
