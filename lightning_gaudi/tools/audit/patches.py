"""Registers what is patched in a program that `lightning-gaudi audit` has started."""

from __future__ import annotations

from lightning_gaudi._patches.register import Patch

PATCHES = (
    Patch(
        name="audited-loaders",
        library="torch",
        checked="2.6 to 2.13",
        targets=(
            "torch.utils.data.dataloader:DataLoader.__init__",
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
            "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter.__init__",
        ),
        why=(
            "Under `lightning-gaudi audit` the shapes of batches are noted, and the lines that "
            "have made the loaders. Nothing else is changed, and elsewhere nothing at all."
        ),
        without="an audit knows no shapes of batches",
    ),
)
