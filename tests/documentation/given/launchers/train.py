import lightning as L
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

trainer = L.Trainer(accelerator="hpu", devices=8, max_steps=2, enable_progress_bar=False)
trainer.fit(BoringModel(), BoringDataModule())
