"""Token ids for `litgpt pretrain --data tests.contract.other_trainers.tokens.Tokens`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from litgpt.data import DataModule
from litgpt.tokenizer import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader


@dataclass
class Tokens(DataModule):
    """Rows of ids, each of which follows from the one before it."""

    vocabulary: int = 64
    num_rows: int = 64
    batch_size: int = field(init=False, repr=False, default=1)
    length: int = field(init=False, repr=False, default=1)

    def __post_init__(self) -> None:
        super().__init__()

    def connect(
        self, tokenizer: Tokenizer | None = None, batch_size: int = 1, max_seq_length: int = -1
    ) -> None:
        """Takes what LitGPT knows of the run."""
        self.batch_size, self.length = batch_size, max_seq_length + 1

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Returns the rows in their order."""
        return self._loader(1)

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Returns other rows."""
        return self._loader(2)

    def _loader(self, seed: int) -> DataLoader[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(self.vocabulary, (self.num_rows, 1), generator=generator)
        rows = (starts + 3 * torch.arange(self.length)) % self.vocabulary
        return DataLoader(list(rows), batch_size=self.batch_size, drop_last=True)
