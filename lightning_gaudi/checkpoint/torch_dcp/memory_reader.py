"""Presents a checkpoint in memory to torch's DCP as if it were a folder of shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from typing_extensions import override


class MemoryReader(StorageReader):
    """Reads from states that each rank has in full, such as those of a file mapped into memory.

    Each rank copies its own parts. Nothing is sent, and no card ever holds a whole tensor.

    Args:
        states: Of models and optimizers, by name; tensors on the CPU.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        self._values, self._paths = flatten_state_dict(dict(states))

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns metadata in which each tensor is one chunk."""
        stored = {key: _describe(value) for key, value in self._values.items()}
        return Metadata(stored, planner_data=self._paths)

    @override
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies the parts that a rank asks for."""
        for item in plan.items:
            self._read(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, item: ReadItem, planner: LoadPlanner) -> None:
        value = self._values[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            # `load_bytes` expects what a file of shards would have: the value as `torch.save`
            # writes it.
            buffer = BytesIO()
            torch.save(value, buffer)
            buffer.seek(0)
            planner.load_bytes(item, buffer)
            return
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            value = value.narrow(dim, start, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(value)
        planner.commit_tensor(item, target)

    @override
    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing, since a reader is used once."""

    @override
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing, since the states are in memory."""

    @override
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan as it is."""
        return plan

    @override
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans as they are."""
        return plans

    @classmethod
    @override
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns False, since no address leads to what it reads."""
        return False


def _describe(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(value, Tensor):
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size([0] * value.dim()), value.size())
    return TensorStorageMetadata(TensorProperties.create_from_tensor(value), value.size(), [chunk])
