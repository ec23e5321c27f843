"""What `describe` predicts is what the simulated device compiles, in lazy mode."""

from tests.helpers.forked import fork_python

_SOURCE = """
    import lightning.pytorch as pl
    import numpy as np
    import torch

    from lightning_gaudi.callbacks import GraphMonitor
    from lightning_gaudi.data import (
        BucketBatchSampler, BucketDataLoader, describe, optimal_buckets
    )

    LENGTHS = np.random.default_rng(0).integers(1, 65, size=203)
    SAMPLES = [{"input_ids": [1] * int(n), "labels": i % 2} for i, n in enumerate(LENGTHS)]

    def loader(shuffle):
        sampler = BucketBatchSampler(LENGTHS, optimal_buckets(LENGTHS, 3), 8, shuffle=shuffle)
        return BucketDataLoader(SAMPLES, sampler)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(4, 8), torch.nn.Linear(8, 2)

        def training_step(self, batch, batch_idx):
            hidden = self.embedding(batch["input_ids"]) * batch["attention_mask"][..., None]
            logits = self.head(hidden.mean(1))
            return torch.nn.functional.cross_entropy(logits, batch["labels"])

        def validation_step(self, batch, batch_idx):
            self.training_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monitor = GraphMonitor()
    trainer = pl.Trainer(
        accelerator="hpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[monitor],
    )
    trainer.fit(Model(), loader(True), loader(False))
    report = monitor.report
    print(describe(loader(True)).num_compilations, report.training_graphs)
    print(describe(loader(False)).num_compilations, report.graph_compilations["validation"])
"""


def test_each_shape_is_compiled_once_in_training_and_once_in_validation():
    lazy = {"PT_HPU_LAZY_MODE": "1"}
    lines = fork_python(_SOURCE, env=lazy).stdout.splitlines()[-2:]
    training, validation = ([int(number) for number in line.split()] for line in lines)
    # And the optimizer's, which depends on no batch; and that of 50 losses, looked at for NaN.
    assert training == [3, 3 + 1 + 1]
    assert validation == [3, 3]
