"""Data for devices that want static shapes: no device is touched here, and Lightning is not needed.

In reading order:

- `buckets`: a few lengths to pad to, chosen by dynamic programming.
- `sampler`: batches from one bucket each, shared among ranks, shuffled and resumable.
- `padding`: samples of different lengths into tensors of one shape.
- `loader`: a DataLoader of such batches that Lightning takes as it is, saves and resumes.
- `workers`: processes that load, in a loop without Lightning.
- `evaluation`: one batch shape for any data set, each sample once.
- `packing`: many short sequences in one row of fixed length, each attending only to itself.
- `describe`: which shapes a loader gives, and how much of them is padding.
- `embedded`: real English text that every machine already has.
- `cache`: where what is made once is kept.
"""

from lightning_gaudi._core.cache import cache_folder
from lightning_gaudi.data.buckets import optimal_buckets
from lightning_gaudi.data.describe import ShapeReport, describe
from lightning_gaudi.data.embedded import embedded_documents, embedded_fingerprint
from lightning_gaudi.data.evaluation import evaluation_loader
from lightning_gaudi.data.loader import BucketDataLoader
from lightning_gaudi.data.packing import block_diagonal_mask, pack
from lightning_gaudi.data.padding import pad_batch
from lightning_gaudi.data.sampler import BucketBatch, BucketBatchSampler
from lightning_gaudi.data.workers import worker_context

__all__ = [
    "BucketBatch",
    "BucketBatchSampler",
    "BucketDataLoader",
    "ShapeReport",
    "block_diagonal_mask",
    "cache_folder",
    "describe",
    "embedded_documents",
    "embedded_fingerprint",
    "evaluation_loader",
    "optimal_buckets",
    "pack",
    "pad_batch",
    "worker_context",
]
