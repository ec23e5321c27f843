import sys

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from lightning_gaudi._core import vendor
from lightning_gaudi.callbacks import ThroughputReport, TokenThroughput, _model_flops

STEP_S = 0.02


class Clock:
    """In place of the machine's, which others use too."""

    now = 0.0

    @classmethod
    def perf_counter(cls):
        return cls.now


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(sys.modules[TokenThroughput.__module__], "time", Clock)


class Model(LightningModule):
    """Takes a known time a step, and a long one in validation."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        Clock.now += STEP_S
        return self.layer(batch["ids"] if isinstance(batch, dict) else batch).sum()

    def validation_step(self, batch, batch_idx):
        Clock.now += 10 * STEP_S

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(callback, tmp_path, collate, **settings):
    loader = DataLoader(torch.randn(24, 4), batch_size=2, collate_fn=collate)
    trainer = Trainer(
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
        **{"accelerator": "cpu", **settings},
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
    assert report.seconds == pytest.approx(8 * STEP_S)
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


@pytest.mark.parametrize("given", [-1, 0, "count", [1]])
def test_operations_that_are_none_are_refused(given):
    with pytest.raises(ValueError, match=r"flops_per_batch=.* is no number above 0"):
        TokenThroughput(flops_per_batch=given)


def test_nothing_measured_is_zero_not_an_error():
    report = ThroughputReport()
    assert (report.tokens_per_s, report.samples_per_s, report.token_efficiency) == (0, 0, 0)
    assert report.flops_per_s is report.mfu is None
    assert ThroughputReport(num_flops=0, peak_flops=100).mfu == 0


def test_utilization_is_the_share_of_the_peak():
    report = ThroughputReport(num_flops=600, peak_flops=400, seconds=3.0)
    assert (report.flops_per_s, report.mfu) == (200, 0.5)


FLOPS = 2 * 2 * 4 * 2  # of 2 rows by 4 x 1 weights, and of the weights' gradient


@pytest.mark.parametrize(
    ("given", "per_batch"),
    [(1000, 1000), (lambda batch: 10 * len(batch["ids"]), 20), ("measured", FLOPS)],
)
def test_operations_are_those_given_or_counted(tmp_path, given, per_batch):
    callback = TokenThroughput(num_warmup_steps=2, tokens_key="ids", flops_per_batch=given)
    report = _fit(callback, tmp_path, _with_counts)
    assert (report.num_steps, report.num_flops) == (10, 10 * per_batch)
    assert report.mfu is None  # of a CPU no peak is known
    (metrics,) = tmp_path.rglob("metrics.csv")
    header = metrics.read_text().splitlines()[0]
    assert "throughput/flops_per_s" in header
    assert "mfu" not in header


def test_operations_are_those_of_the_module_where_none_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "flops_per_batch", 7, raising=False)
    report = _fit(TokenThroughput(2, "ids"), tmp_path, _with_counts)
    assert report.num_flops == 70


def test_a_step_that_is_counted_is_not_timed(tmp_path):
    callback = TokenThroughput(0, "ids", flops_per_batch="measured")
    report = _fit(callback, tmp_path, _with_counts)
    assert (report.num_steps, report.num_flops) == (11, 11 * FLOPS)


def test_a_shape_is_counted_once_and_not_without_end(tmp_path, monkeypatch):
    lengths = iter(range(2, 100))
    monkeypatch.setattr(_model_flops, "_MAX_SHAPES", 3)

    def collate(rows):
        return {"ids": torch.stack(rows), "num_tokens": 6, "of_a_shape": torch.ones(next(lengths))}

    callback = TokenThroughput(0, "ids", flops_per_batch="measured")
    with pytest.warns(UserWarning, match="has met 3 shapes of batches, and counts no more"):
        report = _fit(callback, tmp_path, collate)
    assert report.num_flops is report.mfu is None
    assert report.num_steps == 9


class Failing(Model):
    """Fails in its second step, within which its operations are counted."""

    def training_step(self, batch, batch_idx):
        if batch_idx:
            raise ArithmeticError("on purpose")
        return super().training_step(batch, batch_idx)


def test_counting_ends_where_a_step_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "Model", Failing)
    lengths = iter(range(2, 100))

    def collate(rows):
        return {"ids": torch.stack(rows), "of_a_shape": torch.ones(next(lengths))}

    callback = TokenThroughput(0, "ids", flops_per_batch="measured")
    with pytest.raises(ArithmeticError, match="on purpose"):
        _fit(callback, tmp_path, collate)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_on_a_gaudi_utilization_is_of_the_peak_in_bf16(tmp_path, monkeypatch):
    known = vendor.metric
    monkeypatch.setattr(
        vendor, "metric", lambda name: None if name == "simulation" else known(name)
    )
    callback = TokenThroughput(2, "ids", flops_per_batch=10**9)
    hpu = {"accelerator": "hpu", "devices": 1}
    report = _fit(callback, tmp_path, _with_counts, precision="bf16-mixed", **hpu)
    assert report.peak_flops == 432 * 10**12
    assert report.mfu == report.num_flops / report.seconds / report.peak_flops
    assert "throughput/mfu" in next(tmp_path.rglob("metrics.csv")).read_text()


def test_on_a_simulated_card_there_is_no_utilization_and_it_says_why(tmp_path):
    callback = TokenThroughput(2, "ids", flops_per_batch="measured")
    hpu = {"accelerator": "hpu", "devices": 1}
    with pytest.warns(UserWarning, match="this GAUDI2 is simulated and computes on the CPU of"):
        report = _fit(callback, tmp_path, _with_counts, precision="bf16-mixed", **hpu)
    assert report.num_flops == 10 * FLOPS
    assert report.mfu is None
    assert "mfu" not in next(tmp_path.rglob("metrics.csv")).read_text()
