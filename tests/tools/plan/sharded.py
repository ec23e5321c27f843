"""python sharded.py STRATEGY NUM_CARDS [FOLDER]: trains; prints the peak, and saves if told to."""

import gc
import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

STRATEGIES = {
    "fsdp": lambda: FSDPStrategy(auto_wrap_policy={nn.Linear}),
    "fsdp2": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    "zero2": lambda: "deepspeed_stage_2",
    "zero3": lambda: "deepspeed_stage_3",
    "fsdp_offload": lambda: FSDPStrategy(auto_wrap_policy={nn.Linear}, cpu_offload=True),
    "zero3_offload": lambda: "deepspeed_stage_3_offload",
}


class Model(pl.LightningModule):
    def __init__(self, name):
        super().__init__()
        self._is_sharded = name == "fsdp2"
        self._steps_on_host = name == "zero3_offload"
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6))
        )

    def configure_model(self):
        if self._is_sharded:
            for layer in [*self.layers, self.layers]:
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            self._is_sharded = False

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        if self._steps_on_host:
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            return DeepSpeedCPUAdam(self.parameters())
        return torch.optim.Adam(self.parameters())


def host_bytes():
    """Of all tensors that this process has on the host, whoever holds them."""
    tensors = (each for each in gc.get_objects() if torch.is_tensor(each))
    storages = (each.untyped_storage() for each in tensors if each.device.type == "cpu")
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def main(name, num_cards, folder=None):
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=int(num_cards),
        strategy=STRATEGIES.get(name, lambda: name)(),
        max_steps=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Model(name)
    samples = torch.randn(512, 512)
    callback = pl.Callback()

    def on_train_end(*_):
        if trainer.is_global_zero:
            print("PEAK", torch.hpu.memory_stats()["MaxInUse"], flush=True)
            print("HOST", host_bytes() - samples.nbytes, flush=True)
        if folder is not None:
            trainer.save_checkpoint(f"{folder}/full")
            trainer.save_checkpoint(f"{folder}/weights", weights_only=True)

    callback.on_train_end = on_train_end
    trainer.callbacks.append(callback)
    trainer.fit(model, DataLoader(samples, batch_size=16))


if __name__ == "__main__":
    main(*sys.argv[1:])
