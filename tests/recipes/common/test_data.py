import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_gaudi.data import BucketBatchSampler, BucketDataLoader, pad_batch
from recipes.common.data import RecipeData
from tests.helpers.tiny import QUIET

NUM_BATCHES, STOP = 10, 4


class _Data(RecipeData):
    def train_dataloader(self):
        samples = [{"input_ids": [index]} for index in range(2 * NUM_BATCHES)]
        sampler = BucketBatchSampler([1] * len(samples), [1], 2, shuffle=True)
        return self.resumed(BucketDataLoader(samples, sampler, pad_batch))


class _Module(pl.LightningModule):
    """With a schedule that asks for the length of the run, as those of the recipes do."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks, self.layer, self.seen = asks, nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch["input_ids"].flatten().tolist())
        return self.layer(batch["input_ids"].float()).mean()

    def configure_optimizers(self):
        if self.asks:
            assert self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("length", [{"max_epochs": 2}, {"max_steps": 2 * NUM_BATCHES}])
def test_training_goes_on_with_the_next_batch(asks, length, tmp_path):
    every = ModelCheckpoint(tmp_path, every_n_train_steps=STOP, save_top_k=-1, filename="{step}")
    settings = {"accelerator": "cpu", **QUIET, **length}
    whole = _Module(asks)
    pl.Trainer(callbacks=[every], **{**settings, "enable_checkpointing": True}).fit(whole, _Data())
    resumed = _Module(asks)
    pl.Trainer(**settings).fit(resumed, _Data(), ckpt_path=tmp_path / f"step={STOP}.ckpt")
    assert resumed.seen == whole.seen[STOP:]
    assert len(whole.seen) == 2 * NUM_BATCHES
