"""Loads weights from safetensors files onto a card, tensor by tensor.

The file of a tensor is mapped into memory only while the tensor is read. So a host process never
holds more than one tensor and what it has loaded, whatever the size of the files.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from lightning_gaudi._core.hooks import has_values
from lightning_gaudi._core.wording import listed
from lightning_gaudi.untrusted import printable

from .checkpoint_files import Stored, read_headers, read_tensor
from .parallel_layers import as_parameter
from .plans import Layout


class _Slot(NamedTuple):
    """The place of a weight or a buffer in a module."""

    owner: nn.Module
    name: str

    @property
    def is_buffer(self) -> bool:
        return self.name in self.owner._buffers

    def get(self) -> Tensor:
        tensors = self.owner._buffers if self.is_buffer else self.owner._parameters
        found = tensors[self.name]
        assert found is not None
        return found

    def set(self, tensor: Tensor) -> None:
        tensors: dict[str, Any] = vars(self.owner)["_buffers" if self.is_buffer else "_parameters"]
        tensors[self.name] = tensor

    @property
    def layout(self) -> Layout | None:
        """The way the weight is cut; None if it is whole."""
        layouts: Mapping[str, Layout] = getattr(self.owner, "layouts", {})
        return layouts.get(self.name)


@torch.no_grad()
def load_weights(model: Any, folder: str | Path, device: torch.device | str) -> None:
    """Puts a model's weights and buffers on a card, whole or in the parts that `parallelize` made.

    Each is converted to the dtype that it has in the model. Buffers that are in no file are
    computed as the model computes them. The files are checked before the first weight is read. In
    a dry run, where nobody reads values, the weights stay empty and no file is read.

    Args:
        model: A model of transformers, on meta; weights that it has already are loaded again.
        folder: A folder with a model.safetensors, or a model.safetensors.index.json and its files.
        device: The device, such as "hpu".

    Raises:
        ValueError: A file is missing, truncated or no safetensors file; or a tensor is missing or
            has another shape. The message names it.
        TypeError: The model is not one of transformers.
    """
    folder, device = Path(folder), torch.device(device)
    if not hasattr(model, "tie_weights"):
        raise TypeError(
            f"{type(model).__name__} is no model of transformers. Pass one, such as a "
            "LlamaForCausalLM; load others by safetensors.torch.load_model(...)."
        )
    model.tie_weights()  # transformers 5.0 does not do so on meta
    if not has_values():
        _leave_empty(model, device)
        return
    stored = read_headers(folder)
    found, unused = _match(model, stored, folder)
    for slots, each in found:
        _check_shape(slots[0], each)
    for slots, each in found:
        _load(slots, each, device)
    _make_buffers(model, device)
    _warn_of(unused, folder, model)


def _match(
    model: nn.Module, stored: Mapping[str, Stored], folder: Path
) -> tuple[list[tuple[list[_Slot], Stored]], set[str]]:
    """Returns what is stored for which weights, and the names of what no weight needs."""
    found, missing, unused = [], [], set(stored)
    for names, slots in _targets(model):
        spellings = list(_spellings(names, model))
        unused.difference_update(spellings)
        known = [stored[name] for name in spellings if name in stored]
        if known:
            found.append((slots, known[0]))
        elif not slots[0].is_buffer:
            missing.append(names[0])
    if missing:
        raise ValueError(
            f"{printable(folder)} lacks {_some(missing)}, which {type(model).__name__} "
            "needs. Its files or its configuration are those of another model."
        )
    return sorted(found, key=lambda each: each[1].path.name), unused


def _targets(model: nn.Module) -> Iterable[tuple[list[str], list[_Slot]]]:
    """Returns the names and places of each weight and buffer; a tied weight has several."""
    found: dict[Tensor, tuple[list[str], list[_Slot]]] = {}
    for prefix, owner in model.named_modules():
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is not None:
                names, slots = found.setdefault(tensor, ([], []))
                names.append(f"{prefix}.{name}" if prefix else name)
                slots.append(_Slot(owner, name))
    return found.values()


def _spellings(names: Iterable[str], model: nn.Module) -> Iterator[str]:
    """Yields the names that files may have for a weight, with the model's prefix and without."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    for name in names:
        yield from (name, name.removeprefix(prefix), f"{prefix}{name}")


def _check_shape(slot: _Slot, stored: Stored) -> None:
    layout = slot.layout
    expected = tuple(slot.get().shape) if layout is None else layout.stored
    if stored.shape != expected:
        raise ValueError(
            f"{printable(stored.name)} in {printable(stored.path)} has the shape "
            f"{stored.shape}, but the model's is {expected}. The configuration is that of "
            "another model."
        )


def _load(slots: list[_Slot], stored: Stored, device: torch.device) -> None:
    """Puts a tensor, or this card's part of it, on the card and in its places."""
    target, layout = slots[0].get(), slots[0].layout
    part = read_tensor(stored)
    if layout is not None:
        assert isinstance(target, DTensor)
        mesh = target.device_mesh
        part = layout.part(part, mesh.size(), mesh.get_local_rank())
    part = part.to(target.dtype, memory_format=torch.contiguous_format)
    _place(slots, part.to(device, copy=device.type == "cpu"))


def _leave_empty(model: nn.Module, device: torch.device) -> None:
    """Gives the model weights without values, without reading a file."""
    for _, slots in _targets(model):
        target, layout = slots[0].get(), slots[0].layout
        if slots[0].is_buffer:
            continue
        shape = tuple(target.shape)
        if layout is not None:
            assert isinstance(target, DTensor)
            mesh = target.device_mesh
            shape = layout.part_shape(mesh.size(), mesh.get_local_rank())
        _place(slots, torch.empty(shape, dtype=target.dtype, device=device))
    _make_buffers(model, device)


def _place(slots: list[_Slot], loaded: Tensor) -> None:
    """Puts a tensor that is on the card in its places, as a weight or this card's part of one."""
    target, layout = slots[0].get(), slots[0].layout
    if layout is not None:
        assert isinstance(target, DTensor)
        loaded = as_parameter(loaded, layout, target.device_mesh)
    elif not slots[0].is_buffer:
        loaded = nn.Parameter(loaded, requires_grad=False)
    for slot in slots:
        slot.set(loaded)


def _make_buffers(model: nn.Module, device: torch.device) -> None:
    """Computes the buffers that are still on meta, and moves those that are elsewhere."""
    like = None
    for prefix, module in model.named_modules():
        kept = {name: each for name, each in vars(module).items() if isinstance(each, Tensor)}
        buffers = {name: each for name, each in module._buffers.items() if each is not None}
        for name, tensor in [*kept.items(), *buffers.items()]:
            value = tensor
            if tensor.is_meta:
                like = like or _without_weights(model)
                value = getattr(like.get_submodule(prefix), name)
            place = vars(module) if name in kept else module._buffers
            place[name] = value.to(device, tensor.dtype)


def _without_weights(model: nn.Module) -> nn.Module:
    """Returns the model made anew, with its buffers computed on the CPU and its weights on meta."""
    with _WeightsOnMeta():
        made: nn.Module = type(model)(copy.deepcopy(model.config))
    return made


class _WeightsOnMeta(TorchFunctionMode):
    """Makes weights on meta, which are the memory that is not filled yet when a model is built.

    Buffers are computed, and stay where they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty:
            given["device"] = "meta"
        return func(*args, **given)


def _warn_of(unused: set[str], folder: Path, model: nn.Module) -> None:
    patterns: Any = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
    names = [name for name in sorted(unused) if not any(re.search(p, name) for p in patterns)]
    if names and os.environ.get("RANK", "0") == "0":
        warnings.warn(
            f"{printable(folder)} has {_some(names)}, for which {type(model).__name__} has no "
            "place: not loaded. Expect another model than was saved if these are weights.",
            UserWarning,
            stacklevel=4,  # torch's decorator is between
        )


def _some(names: list[str]) -> str:
    return listed([printable(name, max_chars=200) for name in names])
