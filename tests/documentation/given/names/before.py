import lightning as L
import torch
from lightning import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy

from lightning_gaudi import HPUDeepSpeedStrategy
from lightning_gaudi.callbacks import TokenThroughput
