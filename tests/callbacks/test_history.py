from itertools import pairwise

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import MetricHistory, Reliability
from tests.helpers.tiny import QUIET


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.seen.append(loss.detach().clone())
        return {"loss": loss, "twice_loss": 2 * loss.detach(), "ignored": loss.detach()}

    def validation_step(self, batch, batch_idx):
        self.log("val/mean", self.layer(batch).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(every: int, num_steps: int = 12, checkpoint=None, **settings):
    torch.manual_seed(0)
    loader = DataLoader(torch.randn(300, 4), batch_size=2)
    history, model = MetricHistory(), Model()
    options = {"accelerator": "hpu", "devices": 1, "max_steps": num_steps, **(QUIET | settings)}
    trainer = Trainer(log_every_n_steps=every, callbacks=[history], **options)
    trainer.fit(model, loader, loader, ckpt_path=checkpoint)
    return history, [float(loss.cpu()) for loss in model.seen], trainer


@pytest.mark.parametrize(("every", "accumulated"), [(4, 1), (2, 3), (70, 1)])
def test_what_is_logged_is_the_mean_over_the_interval(every, accumulated):
    steps = 2 * every
    history, losses, _ = _fit(every, steps, accumulate_grad_batches=accumulated)
    size = every * accumulated
    means = [2 * sum(losses[i * size : (i + 1) * size]) / size for i in range(2)]
    assert history.training["train/twice_loss"] == [
        (every, pytest.approx(means[0], rel=1e-6)),
        (2 * every, pytest.approx(means[1], rel=1e-6)),
    ]
    assert set(history.training) == {"train/twice_loss", "train/learning_rate"}


def test_the_host_waits_once_in_a_log_step_and_never_in_another():
    waits = []

    class Counting(Model):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            waits.append(vendor.metric("host_sync")["TotalNumber"])

    loader = DataLoader(torch.randn(24, 4), batch_size=2)
    options = {"accelerator": "hpu", "devices": 1, "max_steps": 12, "limit_val_batches": 0}
    options |= QUIET
    # Losses are looked at for NaN in the same steps; here it is the callback that counts.
    callbacks = [MetricHistory(), Reliability(stop_on_nan=False)]
    Trainer(log_every_n_steps=4, callbacks=callbacks, **options).fit(Counting(), loader, loader)
    steps = [after - before for before, after in pairwise(waits)]
    assert steps == [0, 0, 1] + [0, 0, 0, 1] * 2


def test_a_resumed_run_goes_on_within_the_interval(tmp_path):
    whole, losses, _ = _fit(4)
    part, _, trainer = _fit(4, num_steps=6)
    assert part.training["train/twice_loss"] == whole.training["train/twice_loss"][:1]
    trainer.save_checkpoint(tmp_path / "part.ckpt")
    rest = MetricHistory()
    saved = torch.load(tmp_path / "part.ckpt", weights_only=True)["callbacks"]["MetricHistory"]
    rest.load_state_dict(saved)
    assert rest.training == part.training
    assert rest._interval.take()["twice_loss"] == pytest.approx(losses[4] + losses[5], rel=1e-6)


def test_validations_are_kept_and_the_rest_is_off_without_log_steps():
    history, _, _ = _fit(0, limit_val_batches=2, val_check_interval=6)
    assert history.training == {}
    assert [step for step, _ in history.validation["val/mean"]] == [6, 12]
