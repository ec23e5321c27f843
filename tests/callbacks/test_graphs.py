import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_gaudi.callbacks import GraphMonitor


class Model(LightningModule):
    """A linear model that waits for the device in every step, in log steps, or never."""

    def __init__(self, waits: str):
        super().__init__()
        self.waits = waits
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        if self.waits == "every step":
            loss.item()
        elif self.waits == "log steps":
            self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.layer(batch).sum().item()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(waits: str, tmp_path, accelerator: str = "hpu") -> GraphMonitor:
    loader = DataLoader(torch.randn(24, 4), batch_size=2)
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
    trainer.fit(Model(waits), loader, loader)
    return monitor


@pytest.mark.parametrize(
    ("waits", "per_step", "per_log_step"),
    [("never", 0, 0), ("log steps", 0, 1), ("every step", 1, 1)],
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


def test_another_device_is_not_measured(tmp_path):
    report = _fit("never", tmp_path, accelerator="cpu").report
    assert report.graph_compilations is None
    assert report.training_graphs is None
    assert report.host_syncs_per_step is None
    assert report.host_syncs_per_log_step is None
