from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader

fabric = L.Fabric(accelerator="hpu", devices=1)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
loader = fabric.setup_dataloaders(DataLoader(torch.randn(8, 4), batch_size=4))
path, num_epochs = Path("state.ckpt"), 2
fabric.save(path, {"model": model, "optimizer": optimizer, "loader": loader, "epoch": 0})
