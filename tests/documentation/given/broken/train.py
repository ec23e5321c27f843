import lightning as L
import torch
from torch import nn

class Sum(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    def training_step(self, batch, batch_idx):
        error = (self.net(batch[0]) - batch[1]).abs()
        return error[error > 0.1].mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

L.seed_everything(0)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
trainer = L.Trainer(accelerator="hpu", devices=1, max_epochs=10)
trainer.fit(Sum(), torch.utils.data.DataLoader(data, batch_size=64))
error = (trainer.model.net(x) - x.sum(1, keepdim=True)).abs().mean()
print(f"{trainer.global_step} steps on {torch.hpu.get_device_name()}, mean error {error:.3f}")
