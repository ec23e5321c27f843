"""Prepares data for devices that want static shapes, without a device and without Lightning.

In reading order:

- `buckets`: a few lengths to pad to, chosen by dynamic programming.
- `sampler`: batches from one bucket each, shared among ranks, shuffled and resumable.
- `padding`: samples of different lengths into tensors of one shape.
- `loader`: a DataLoader of such batches that Lightning takes as it is, saves and resumes.
- `evaluation`: one batch shape for any data set, each sample once.
- `packing`: many short sequences in one row of fixed length, each attending only to itself.
- `shape_report`: which shapes a loader gives, and how much of them is padding.
- `embedded`: real English text that every machine already has.
- `cache`: the folder that keeps what is made once.
"""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from lightning_gaudi._core.cache import cache_folder as cache_folder
    from lightning_gaudi.data.buckets import optimal_buckets as optimal_buckets
    from lightning_gaudi.data.embedded import (
        embedded_documents as embedded_documents,
        embedded_fingerprint as embedded_fingerprint,
    )
    from lightning_gaudi.data.evaluation import evaluation_loader as evaluation_loader
    from lightning_gaudi.data.loader import (
        BucketDataLoader as BucketDataLoader,
        worker_context as worker_context,
    )
    from lightning_gaudi.data.packing import (
        PackDataset as PackDataset,
        block_diagonal_mask as block_diagonal_mask,
        fitting_capacity as fitting_capacity,
        pack as pack,
        pack_batch as pack_batch,
        pack_together as pack_together,
    )
    from lightning_gaudi.data.padding import pad_batch as pad_batch
    from lightning_gaudi.data.sampler import (
        BucketBatch as BucketBatch,
        BucketBatchSampler as BucketBatchSampler,
        TooFewSamplesError as TooFewSamplesError,
    )
    from lightning_gaudi.data.shape_report import ShapeReport as ShapeReport, describe as describe
else:
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "BucketBatch": ".sampler",
            "BucketBatchSampler": ".sampler",
            "BucketDataLoader": ".loader",
            "PackDataset": ".packing",
            "ShapeReport": ".shape_report",
            "TooFewSamplesError": ".sampler",
            "block_diagonal_mask": ".packing",
            "cache_folder": "lightning_gaudi._core.cache",
            "describe": ".shape_report",
            "embedded_documents": ".embedded",
            "embedded_fingerprint": ".embedded",
            "evaluation_loader": ".evaluation",
            "fitting_capacity": ".packing",
            "optimal_buckets": ".buckets",
            "pack": ".packing",
            "pack_batch": ".packing",
            "pack_together": ".packing",
            "pad_batch": ".padding",
            "worker_context": ".loader",
        },
    )
