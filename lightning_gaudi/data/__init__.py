"""Data for devices that want static shapes: no device is touched here, and Lightning is not needed.

- `packing`: many short sequences in one row of fixed length, each attending only to itself.
- `embedded`: real English text that every machine already has.
- `cache`: where data that were made once are kept.
"""

from lightning_gaudi.data.cache import cache_folder
from lightning_gaudi.data.embedded import embedded_documents, embedded_fingerprint
from lightning_gaudi.data.packing import block_diagonal_mask, pack

__all__ = [
    "block_diagonal_mask",
    "cache_folder",
    "embedded_documents",
    "embedded_fingerprint",
    "pack",
]
