"""A model of transformers made of a configuration, with its collator and metrics of texts."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from torchmetrics.text import CharErrorRate, WordErrorRate
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


class Tokens(pl.LightningModule):
    def __init__(self):
        super().__init__()
        config = GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=4)
        self.model = GPT2LMHeadModel(config)
        self.word_errors, self.char_errors = WordErrorRate(), CharErrorRate()

    def training_step(self, batch, batch_idx):
        output = self.model(**batch)
        self.log("loss", output.loss, prog_bar=True)
        return output.loss

    def validation_step(self, batch, batch_idx):
        output = self.model(**batch)
        self.log("val_loss", output.loss)
        found = [" ".join(map(str, row)) for row in output.logits.argmax(-1).tolist()]
        wanted = [" ".join(map(str, row)) for row in batch["input_ids"].tolist()]
        self.word_errors(found, wanted)
        self.char_errors(found, wanted)
        self.log_dict({"word_errors": self.word_errors, "char_errors": self.char_errors})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        schedule = get_linear_schedule_with_warmup(optimizer, 10, 100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def collate(texts):
    length = max(len(each) for each in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 48, (96,), generator=generator).tolist()
    texts = [torch.randint(1, 300, (n,), generator=generator).tolist() for n in lengths]
    trainer = pl.Trainer(
        accelerator="hpu", devices=1, max_epochs=1, accumulate_grad_batches=2, precision="bf16-true"
    )
    trainer.fit(
        Tokens(),
        DataLoader(texts, 8, collate_fn=collate),
        DataLoader(texts[:16], 8, collate_fn=collate),
    )
