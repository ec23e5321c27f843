import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

trainer = L.Trainer(
    accelerator="hpu",
    devices=1,
    strategy="deepspeed_stage_2",
    max_steps=2,
    callbacks=[ModelCheckpoint("runs", save_last=True)],
    enable_progress_bar=False,
)
trainer.fit(BoringModel())
