"""Notes the shapes of the batches that DataLoaders give, and where the user has made the loaders.

B batch, T tokens.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import dataloader as torch_dataloader

from lightning_gaudi._patches import apply
from lightning_gaudi.simulator.rules.report import is_library

from . import call_sites
from .call_sites import Place
from .record import Loader
from .recording import Recorder

_PATCH = "audited-loaders"
_MAX_BUCKETS = 4


class LoaderWatch:
    """Notes the batches of every loader of this process.

    Args:
        recorder: It counts the steps, and is told of the places where workers are started.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made_at: dict[int, Place] = {}
        """Where each loader was made, by the address of its data set.

        Lightning and accelerate make loaders of their own, of the same data set: the first place
        is the user's.
        """
        self._kept: list[Any] = []
        """The data sets, kept so that none of their addresses is used again."""
        self._loaders: dict[tuple[int, str], _Batches] = {}

    def install(self) -> None:
        """Watches all loaders from now on."""
        loader, iterator = torch_dataloader.DataLoader, torch_dataloader._BaseDataLoaderIter
        apply.wrap(_PATCH, loader, "__init__")(self._init)
        apply.wrap(_PATCH, iterator, "__next__")(self._next)
        workers = torch_dataloader._MultiProcessingDataLoaderIter
        apply.wrap(_PATCH, workers, "__init__")(self._start_workers)

    def loaders(self) -> list[Loader]:
        """Returns what was noted."""
        return [batches.loader() for batches in self._loaders.values()]

    def _init(self, original: Callable[..., None], loader: Any, *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        if id(loader.dataset) not in self._made_at:
            self._made_at[id(loader.dataset)] = call_sites.here()
            self._kept.append(loader.dataset)

    # Starting workers forks a process that may hold a card, which a rule reports. That belongs to
    # the line of the loader, not to the one that happens to iterate over it first.
    def _start_workers(self, original: Callable[..., None], iterator: Any, loader: Any) -> None:
        with self._recorder.at(self._made_at.get(id(loader.dataset)) or call_sites.here()):
            original(iterator, loader)

    def _next(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        batch = original(iterator)
        if self._recorder.is_on:
            here = call_sites.here()
            made_at = self._made_at.get(id(iterator._dataset), here)
            key = id(iterator._dataset), here.stage
            if key not in self._loaders:
                self._loaders[key] = _Batches(iterator, made_at, here.stage)
            self._loaders[key].add(batch, self._recorder.num_steps)
        return batch


class _Batches:
    """Counts the batches of one loader."""

    def __init__(self, iterator: Any, made_at: Place, stage: str) -> None:
        # Late, here and below: this module is imported at the end of `import torch`, which the room
        # `data` may have begun itself, and is then half imported.
        from lightning_gaudi.data.sampler import BucketBatchSampler

        sampler = iterator._index_sampler
        self._loader = Loader(
            name=type(iterator._dataset).__name__,
            file=made_at.file,
            line=made_at.line,
            collate=_describe(iterator._collate_fn),
            stage=stage,
            has_bounded_shapes=any(
                isinstance(each, BucketBatchSampler)
                for each in (sampler, getattr(sampler, "sampler", None))
            ),
            drops_last=bool(getattr(sampler, "drop_last", True)),
        )
        self._seen: dict[str, int] = {}
        self._lengths: Counter[int] = Counter()
        self._num_places = 0

    def add(self, batch: Any, step: int) -> None:
        """Counts a batch."""
        from lightning_gaudi._core.batch_shapes import named_tensors

        tensors = {name: value for name, value in named_tensors(batch) if isinstance(value, Tensor)}
        if not tensors:
            return
        shapes = {name: list(value.shape) for name, value in tensors.items()}
        number = self._seen.setdefault(str(shapes), len(self._seen))
        if number == len(self._loader.shapes):
            self._loader.shapes.append(shapes)
        self._loader.batches.append(number)
        self._loader.steps.append(step)
        if (mask := _mask(tensors)) is not None:
            self._num_places += mask.numel()
            self._lengths.update(mask.sum(1).tolist())

    def loader(self) -> Loader:
        """Returns what was counted, with the best boundaries for its lengths."""
        from lightning_gaudi.data.buckets import optimal_buckets

        lengths = dict(sorted((self._lengths or _longest(self._loader)).items()))
        counted = [length for length, count in lengths.items() for _ in range(count)]
        has_lengths = len(lengths) > 1 and min(lengths) > 0
        return dataclasses.replace(
            self._loader,
            num_tokens=sum(counted) if self._num_places else None,
            num_places=self._num_places,
            lengths=lengths,
            buckets=optimal_buckets(counted, _MAX_BUCKETS) if has_lengths else [],
        )


def _mask(tensors: dict[str, Tensor]) -> Tensor | None:
    """Returns a mask [B, T] on the host, true at tokens, or None if the batch has none."""
    from lightning_gaudi.data.shape_report import MASKS

    for masks in MASKS.values():
        for name in masks:
            mask = tensors.get(name)
            if mask is not None and mask.ndim == 2 and mask.device.type == "cpu":
                return mask != 0
    return None


def _longest(loader: Loader) -> Counter[int]:
    """Counts the lengths to which samples were padded, if one dimension beside the first varies."""
    lengths: Counter[int] = Counter()
    for name, sizes in _varying(loader.shapes).items():
        if len(sizes) != 1:
            continue
        for number in loader.batches:
            shape = loader.shapes[number].get(name)
            if shape is not None and len(shape) > sizes[0]:
                lengths[shape[sizes[0]]] += shape[0]
        return lengths
    return lengths


def _varying(shapes: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Returns the dimensions of each tensor, but for the first, that have several sizes."""
    found: dict[str, list[int]] = {}
    for name in shapes[0] if shapes else ():
        all_of_it = [each[name] for each in shapes if name in each]
        if len({len(shape) for shape in all_of_it}) == 1:
            sizes = [set(each) for each in zip(*all_of_it, strict=True)]
            varying = [dim for dim, found_sizes in enumerate(sizes) if dim and len(found_sizes) > 1]
            if varying:
                found[name] = varying
    return found


def _describe(collate: Any) -> str:
    """Returns a function's name, with its place if it is the user's."""
    # transformers wraps the user's function in a RemoveColumnsCollator.
    collate = getattr(collate, "data_collator", collate)
    name = getattr(collate, "__qualname__", type(collate).__name__)
    function = inspect.unwrap(getattr(collate, "__func__", collate))
    module = getattr(function, "__module__", "") or ""
    code = getattr(function, "__code__", None)
    if code is None or is_library(module):
        return str(name)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
