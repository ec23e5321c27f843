"""A character language model on Python's own sources, run by LightningCLI from a YAML file.

python examples/language_model.py fit --config examples/language_model.yaml
"""

import math
import sysconfig
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SourceText(L.LightningDataModule):
    """Windows of characters from some modules of the standard library."""

    def __init__(self, context: int = 64, batch_size: int = 32) -> None:
        """Cut the text into windows of `context` characters; `batch_size` is over all devices."""
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        names = ("argparse", "ast", "datetime", "enum", "inspect", "pathlib", "typing")
        paths = [stdlib / f"{name}.py" for name in names]
        text = "".join(path.read_text() for path in paths if path.is_file())
        data = torch.tensor(list(text.encode("ascii", "replace")), dtype=torch.long)
        size = self.hparams.context + 1
        windows = data[: len(data) // size * size].view(-1, size)
        self.train = TensorDataset(windows[torch.arange(len(windows)) % 10 != 0])
        self.val = TensorDataset(windows[::10][:256])

    def _loader(self, dataset, shuffle: bool):
        batch_size = self.hparams.batch_size // self.trainer.world_size
        return DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=True)

    def train_dataloader(self):
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self):
        return self._loader(self.val, shuffle=False)


class LanguageModel(L.LightningModule):
    def __init__(
        self,
        d_model: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.05,
        lr: float = 3e-3,
        num_warmup_steps: int = 20,
    ) -> None:
        """A transformer decoder; `lr` is the peak of a cosine after a linear warm-up."""
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(128, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.position = nn.Parameter(0.02 * torch.randn(1024, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, num_heads, 4 * d_model, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens):
        num_tokens = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(num_tokens, device=tokens.device)
        x = self.embedding(tokens) * math.sqrt(self.hparams.d_model) + self.position[:num_tokens]
        x = self.norm(self.layers(x, mask=mask, is_causal=True))
        return x @ self.embedding.weight.T

    def loss(self, batch):
        (window,) = batch
        logits = self(window[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        warmup, total = self.hparams.num_warmup_steps, self.trainer.estimated_stepping_batches

        def scale(step):
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class CLI(LightningCLI):
    def after_fit(self) -> None:
        if self.trainer.is_global_zero:
            print(f"metric: val_loss {self.trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    CLI(LanguageModel, SourceText, save_config_callback=None)
