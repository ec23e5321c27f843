import time

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from lightning_gaudi.callbacks import ThroughputReport, TokenThroughput

STEP_S = 0.02


class Model(LightningModule):
    """Takes a known time a step, and a long one in validation."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        time.sleep(STEP_S)
        return self.layer(batch["ids"] if isinstance(batch, dict) else batch).sum()

    def validation_step(self, batch, batch_idx):
        time.sleep(10 * STEP_S)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(callback, tmp_path, collate, **settings):
    loader = DataLoader(torch.randn(24, 4), batch_size=2, collate_fn=collate)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        log_every_n_steps=4,
        val_check_interval=6,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=CSVLogger(tmp_path),
        callbacks=[callback],
        **settings,
    )
    trainer.fit(Model(), loader, loader)
    return callback.report


def _with_counts(rows):
    return {"ids": torch.stack(rows), "num_tokens": 6, "num_sequences": 3}


def test_tokens_samples_and_time_are_counted_after_warm_up(tmp_path):
    callback = TokenThroughput(num_warmup_steps=4, tokens_key="ids")
    report = _fit(callback, tmp_path, _with_counts)
    assert report.num_steps == 8
    assert (report.num_tokens, report.num_slots, report.num_samples) == (48, 64, 24)
    assert report.token_efficiency == 0.75
    # 8 steps, without the two validations of ten steps' time each.
    assert 8 * STEP_S <= report.seconds < 16 * STEP_S
    assert report.tokens_per_s == pytest.approx(48 / report.seconds)
    assert report.samples_per_s == pytest.approx(24 / report.seconds)


def test_accumulated_steps_count_every_batch(tmp_path):
    callback = TokenThroughput(num_warmup_steps=2, tokens_key="ids")
    report = _fit(callback, tmp_path, _with_counts, accumulate_grad_batches=2)
    assert report.num_steps == 8


def test_without_counts_every_slot_is_a_token_and_every_row_a_sample(tmp_path):
    callback = TokenThroughput(num_warmup_steps=0, tokens_key="ids")
    report = _fit(callback, tmp_path, lambda rows: {"ids": torch.stack(rows)})
    assert (report.num_tokens, report.num_slots, report.num_samples) == (96, 96, 24)


def test_figures_reach_the_loggers(tmp_path):
    _fit(TokenThroughput(num_warmup_steps=2, tokens_key="ids"), tmp_path, _with_counts)
    (metrics,) = tmp_path.rglob("metrics.csv")
    header, *rows = metrics.read_text().splitlines()
    assert "throughput/token_efficiency" in header
    assert len(rows) == 3


def test_a_batch_without_token_ids_is_explained(tmp_path):
    with pytest.raises(ValueError, match=r"a tensor 'input_ids' in each batch, which has \['ids'"):
        _fit(TokenThroughput(num_warmup_steps=0), tmp_path, _with_counts)


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="num_warmup_steps must be 0 or more, but is -1"):
        TokenThroughput(num_warmup_steps=-1)


def test_nothing_measured_is_zero_not_an_error():
    report = ThroughputReport()
    assert (report.tokens_per_s, report.samples_per_s, report.token_efficiency) == (0, 0, 0)
