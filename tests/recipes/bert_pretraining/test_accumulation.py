"""One step on a batch, and one step on the same rows in micro-batches, are the same step."""

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback

from recipes.bert_pretraining.module import BertPretraining

MODEL = {"vocab_size": 120, "max_seq_length": 48, "hidden_size": 32, "dropout": 0.0}
NUM_ROWS = 16  # of a step


class Record(Callback):
    """The loss of each optimizer step: the mean over its micro-batches."""

    def __init__(self):
        self.losses, self.window, self.counts, self.steps = [], [], set(), []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.window.append(outputs["loss"].cpu().double() * trainer.accumulate_grad_batches)
        self.counts.add(int((batch["masked_labels"] >= 0).sum()))
        if trainer.global_step > len(self.losses):
            self.losses.append(torch.stack(self.window).mean())
            self.steps.append(len(self.window))
            self.window = []


def _fit(data, path, num_micro_batches, accelerator="cpu", **settings):
    seed_everything(0, verbose=False)
    record = Record()
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_steps=10,
        accumulate_grad_batches=num_micro_batches,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        callbacks=[record],
        default_root_dir=path,
    )
    torch.manual_seed(1)
    module = BertPretraining(**MODEL, next_sentence=True, learning_rate=1e-3, **settings)
    trainer.fit(module, data)
    return record, {name: value.cpu() for name, value in module.state_dict().items()}


@pytest.mark.slow_but("cpu")
@pytest.mark.parametrize("accelerator", ["cpu", "hpu"])
def test_the_loss_curve_is_that_of_the_whole_batch(make_data, tmp_path, accelerator):
    runs = {}
    for number in (1, 4):
        # One sequence a row: the rows of a micro-batch have very different numbers of predictions.
        data = make_data(
            next_sentence=True, max_sequences_per_pack=1, batch_size=NUM_ROWS // number
        )
        runs[number] = _fit(data, tmp_path, number, accelerator)
    (whole, weights), (accumulated, other_weights) = runs[1], runs[4]
    assert len(whole.losses) == len(accumulated.losses) == 10
    assert accumulated.steps == [4] * 10  # at the ends of the epochs too
    assert len(accumulated.counts) > 5
    assert whole.losses[-1] < whole.losses[0]
    losses = torch.stack(accumulated.losses), torch.stack(whole.losses)
    torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
    torch.testing.assert_close(other_weights, weights, rtol=0, atol=1e-5)


def test_too_little_text_for_one_accumulated_step_is_refused(make_data, tmp_path):
    data = make_data(next_sentence=True)
    with pytest.raises(ValueError, match=r"data.batch_size=4, accumulated 1000 times"):
        _fit(data, tmp_path, 1000)
