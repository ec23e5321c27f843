import lightning as L
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

model, data = BoringModel(), BoringDataModule()
