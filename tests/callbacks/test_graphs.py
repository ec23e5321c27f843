import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import GraphMonitor


class Model(LightningModule):
    """A linear model that waits for the device in every step, in log steps, or never."""

    def __init__(self, waits: str, num_extra: int = 0):
        super().__init__()
        self.waits = waits
        self.num_extra = num_extra
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        for _ in range(self.num_extra):
            batch = batch.exp()
        if self.waits == "every step":
            loss.item()
        elif self.waits == "log steps":
            self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.layer(batch).sum().item()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(
    waits: str, tmp_path, accelerator: str = "hpu", num_extra: int = 0, num_samples: int = 24
) -> GraphMonitor:
    loader = DataLoader(torch.randn(num_samples, 4), batch_size=2)
    monitor = GraphMonitor()
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        log_every_n_steps=4,
        val_check_interval=6,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[monitor],
    )
    model = Model(waits, num_extra)
    if num_samples % 2:
        model.layer = torch.compile(model.layer, backend="hpu_backend", dynamic=False)
    trainer.fit(model, loader, loader)
    return monitor


@pytest.mark.parametrize(
    ("waits", "per_step", "per_log_step"),
    # At a log step the losses of its interval are looked at, too.
    [("never", 0, 1), ("log steps", 0, 2), ("every step", 1, 2)],
)
@pytest.mark.filterwarnings("ignore:.*tensorboard.*:UserWarning")
def test_host_syncs_are_charged_to_the_steps_that_caused_them(
    waits, per_step, per_log_step, tmp_path
):
    report = _fit(waits, tmp_path).report
    assert (report.num_steps, report.num_log_steps) == (9, 3)
    assert report.host_syncs_per_step == per_step
    assert report.host_syncs_per_log_step == per_log_step
    assert report.host_syncs["validation"] == 24


@pytest.mark.filterwarnings("ignore:.*tensorboard.*:UserWarning")
def test_launches_of_a_step_are_counted_and_told(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("lightning_gaudi.callbacks.graphs.rank_zero_info", told.append)
    reports = [_fit("never", tmp_path, num_extra=number).report for number in (0, 5)]
    plain, extra = (report.launches_per_step for report in reports)
    # Product, square and mean, the gradients of each, the updates: some of two operators.
    assert 8 <= plain <= 16
    assert extra == plain + 5
    assert f"launches per step {plain:g}, " in told[0]
    assert [report.launches["validation"] for report in reports] == [2 * 24, 2 * 24]


@pytest.mark.filterwarnings("ignore:.*tensorboard.*:UserWarning", "default::DeprecationWarning")
def test_recompilations_of_steps_are_told_with_the_shape_that_caused_them(tmp_path):
    torch._dynamo.reset()  # what other tests of this process have compiled of a linear layer
    report = _fit("never", tmp_path, num_samples=25).report
    # Step 13 has one sample; validation, which had such a batch before, compiled other graphs.
    assert report.num_steps + report.num_log_steps == 13
    assert report.recompilations
    assert all(cause.startswith("step 13: input ") for cause in report.recompilations)
    assert any("[1, 4] was [2, 4]" in cause for cause in report.recompilations)


@pytest.mark.filterwarnings("ignore:.*tensorboard.*:UserWarning")
def test_what_a_device_does_not_count_is_none(tmp_path, monkeypatch):
    known = vendor.metric
    of_simulator = ("host_sync", "launch", "recompilation")
    monkeypatch.setattr(
        vendor, "metric", lambda name: None if name in of_simulator else known(name)
    )
    report = _fit("every step", tmp_path).report
    assert report.launches_per_step is report.host_syncs_per_step is report.recompilations is None
    assert report.training_graphs == report.cpu_fallbacks_per_step == 0


def test_another_device_is_not_measured(tmp_path):
    report = _fit("never", tmp_path, accelerator="cpu").report
    assert report.graph_compilations is None
    assert report.training_graphs is None
    assert report.host_syncs_per_step is None
    assert report.host_syncs_per_log_step is None
    assert report.launches_per_step is report.cpu_fallbacks_per_step is None
    assert report.recompilations is None
