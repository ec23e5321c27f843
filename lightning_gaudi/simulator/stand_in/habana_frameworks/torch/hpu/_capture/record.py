"""Records what runs while a capture is open, below autograd and autocast.

Tensors are told apart by their memory and layout and never by identity, because autograd saves and
copies tensors without telling anybody. A weak reference to every storage keeps its address from
being used again, so that a known address is that of the storage that was seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import refusals
from .program import Kept, Program, Register, Step
from .refusals import Traits

Key = tuple[Any, ...]


def key_of(tensor: torch.Tensor) -> Key:
    """Returns a key of the memory that a tensor shows, and of its layout."""
    return (
        tensor.untyped_storage()._cdata,
        tensor.dtype,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


@dataclass
class _Memory:
    """A storage that the recorder has met."""

    weak: StorageWeakRef
    base: int
    """The register of the first tensor with that storage."""
    dtype: torch.dtype
    is_made_here: bool
    """Whether an operator of the graph made it."""


class Recorder(TorchDispatchMode):
    """Runs and records every operator on the card.

    Args:
        is_dry: Whether tensors from before the capture get their values back when it ends.
        on_host_values: A function that is called with an operator's name and a tensor when values
            of the host are copied to the card.
    """

    def __init__(self, is_dry: bool, on_host_values: Callable[[str, torch.Tensor], None]) -> None:
        super().__init__()
        self.is_dry = is_dry
        self.steps: list[Step] = []
        self.registers: dict[Key, int] = {}
        self.constants: list[Any] = []
        self.inputs: dict[int, int] = {}
        self.written: set[int] = set()
        self._marked: Sequence[torch.Tensor] = ()
        self._memories: dict[int, _Memory] = {}
        self._views: set[int] = set()
        self._backups: dict[int, tuple[torch.UntypedStorage, bytes]] = {}
        self._on_host_values = on_host_values

    def mark_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """Has the caller give these tensors at each replay, instead of keeping them."""
        self._marked = tensors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs one operator and records it."""
        # A DTensor handles the call itself, and the operators that it calls come here in turn.
        if not all(map(_is_plain, types)):
            return NotImplemented
        kwargs = kwargs or {}
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        has_card = any(tensor.device.type == "hpu" for tensor in tensors)
        traits = refusals.traits_of(func)
        if has_card or traits.is_collective:
            refusals.check(traits, args, has_card)
        if self._is_copy_from_host(traits, args, kwargs, has_card):
            return self._copy_from_host(func, traits, args, kwargs)
        if traits.name == "aten::copy_" and has_card:
            args = self._with_frozen_source(traits, args)
        written = self._written(traits, args, kwargs)
        template = self._template((args, kwargs)) if has_card else None
        result = func(*args, **kwargs)
        leaves = pytree.tree_leaves(result)
        on_card = [leaf for leaf in leaves if _is_on_card(leaf)]
        if has_card and not on_card and any(isinstance(x, torch.Tensor) for x in leaves):
            refusals.check_to_host(traits)
        if has_card or on_card:
            self._record(func, traits, template or (args, kwargs), leaves, written)
        return result

    def finish(self, num_graphs: int) -> Program:
        """Ends the recording.

        Args:
            num_graphs: The number of recipes that a card would have for the capture.
        """
        kept = []
        for memory in self._memories.values():
            if memory.is_made_here and not memory.weak.expired():
                storage = torch.UntypedStorage._new_with_weak_ptr(memory.weak.cdata)
                kept.append(Kept(memory.base, storage, memory.dtype.is_floating_point))
        for storage, content in self._backups.values():
            ctypes.memmove(storage.data_ptr(), content, len(content))
        if self.is_dry:
            for result in kept:
                result.spoil()
        held = {t.untyped_storage()._cdata for t in self.constants if t is not None}
        written = frozenset(self.written & held)
        return Program(self.steps, self.constants, self.inputs, kept, written, num_graphs)

    def _is_copy_from_host(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], has_card: bool
    ) -> bool:
        # torch.tensor(..., device="hpu") ends in lift_fresh.
        if traits.name == "aten::lift_fresh" and has_card:
            return args[0].untyped_storage()._cdata not in self._memories
        return traits.name == "aten::_to_copy" and not has_card and _names_card(kwargs)

    def _copy_from_host(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # A card copies at once and not in the graph, so every replay has the values of the capture.
        result = func(*args, **kwargs)
        if result.dim() > 0 and result.numel() > 0:
            self._on_host_values(traits.name, result)
        self._add_constant(result)
        return result

    def _with_frozen_source(self, traits: Traits, args: tuple[Any, ...]) -> tuple[Any, ...]:
        target, source = args[0], args[1]
        if not _is_on_card(target):
            refusals.check_to_host(traits)
        if _is_on_card(source):
            return args
        if source.dim() > 0 and source.numel() > 0:
            self._on_host_values(traits.name, source)
        # A clone, because the program may change the tensor of the host later.
        return (target, source.clone(), *args[2:])

    def _written(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[torch.Tensor, int]]:
        """Returns the tensors that the operator will write, and their registers."""
        values = [args[i] if i < len(args) else kwargs.get(name) for i, name in traits.written]
        if traits.is_collective:
            values = [args, kwargs]
        tensors = [leaf for leaf in pytree.tree_leaves(values) if _is_on_card(leaf)]
        written = [(tensor, self._register(tensor)) for tensor in tensors]
        for tensor, register in written:
            if not traits.is_collective:
                refusals.check_write(traits, tensor, register in self._views)
            if not traits.renames:
                self.written.add(tensor.untyped_storage()._cdata)
            if self.is_dry:
                self._back_up(tensor)
        return written

    def _back_up(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        memory = self._memories[storage._cdata]
        if not memory.is_made_here and storage._cdata not in self._backups:
            content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
            self._backups[storage._cdata] = (storage, content)

    def _template(self, arguments: Any) -> Any:
        """Returns the arguments with registers in the places of tensors."""
        if isinstance(arguments, torch.Tensor):
            return Register(self._register(arguments))
        if type(arguments) in (list, tuple):
            return type(arguments)(self._template(element) for element in arguments)
        if isinstance(arguments, dict):
            return {name: self._template(value) for name, value in arguments.items()}
        return arguments

    def _register(self, tensor: torch.Tensor) -> int:
        """Returns the register of a tensor, a new one if the tensor was not met before."""
        key = key_of(tensor)
        if (index := self.registers.get(key)) is not None:
            return index
        memory = self._memories.get(key[0])
        if memory is None:
            if (position := self._position_marked(key[0])) is None:
                return self._add_constant(tensor)
            base = self._new_register(self._marked[position], is_made_here=False)
            self.inputs[position] = base
            return self._register(tensor)
        if not memory.is_made_here and memory.base not in self.inputs.values():
            return self._add_constant(tensor)
        return self._add_alias(tensor, memory)

    def _position_marked(self, storage: int) -> int | None:
        for position, tensor in enumerate(self._marked):
            if tensor.untyped_storage()._cdata == storage:
                return position
        return None

    def _add_constant(self, tensor: torch.Tensor) -> int:
        index = self._new_register(tensor, is_made_here=False)
        # The memory of this moment: a later `parameter.data = other` does not reach a captured
        # graph on a card either.
        self.constants[index] = tensor.detach()
        return index

    def _add_alias(self, tensor: torch.Tensor, memory: _Memory) -> int:
        """Adds a tensor that came about without an operator, as `x.data` does."""
        if tensor.dtype != memory.dtype or tensor.is_conj() or tensor.is_neg():
            raise refusals.CaptureError(
                f"A tensor of {tensor.dtype} shows memory of {memory.dtype} and was not made by an "
                "operator, so the capture cannot follow it. Use Tensor.view(dtype)."
            )
        index = self._new_register(tensor, is_made_here=True)
        shape = [list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
        operator = torch.ops.aten.as_strided.default
        self.steps.append(Step(operator, [Register(memory.base), *shape], {}, [index]))
        self._views.add(index)
        return index

    def _new_register(self, tensor: torch.Tensor, *, is_made_here: bool) -> int:
        index = len(self.constants)
        self.constants.append(None)
        key = key_of(tensor)
        self.registers[key] = index
        if key[0] not in self._memories:
            weak = StorageWeakRef(tensor.untyped_storage())
            self._memories[key[0]] = _Memory(weak, index, tensor.dtype, is_made_here)
        return index

    def _record(
        self,
        func: Any,
        traits: Traits,
        template: tuple[Any, Any],
        leaves: list[Any],
        written: list[tuple[torch.Tensor, int]],
    ) -> None:
        # Operators such as `t_` change the layout alone. `_register` follows it at its next use.
        if traits.renames:
            return
        # A tensor that was given as out= may have been resized, and so have another key now.
        for tensor, register in written:
            self.registers.setdefault(key_of(tensor), register)
        if traits.is_view and self._are_constant(template, leaves):
            self._add_constants(leaves)
            return
        results: list[int | None] = []
        is_new = False
        for leaf in leaves:
            is_tensor = isinstance(leaf, torch.Tensor) and _is_plain(type(leaf))
            known = self.registers.get(key_of(leaf)) if is_tensor else None
            is_result = is_tensor and known is None
            results.append(self._new_register(leaf, is_made_here=True) if is_result else None)
            is_new |= is_result
            if is_result and traits.is_view:
                self._views.add(len(self.constants) - 1)
        if is_new or written or traits.draws or traits.is_collective:
            args, kwargs = template
            self.steps.append(Step(func, list(args), kwargs, results, traits.is_collective))

    def _are_constant(self, template: Any, leaves: list[Any]) -> bool:
        """Returns whether results are views of memory from before the capture.

        A transposed weight is one.
        """
        read = Step(None, list(template[0]), template[1], []).reads()
        is_old = all(self.constants[index] is not None for index in read)
        # In inference mode `reshape` itself is dispatched to here, and its result may be a copy.
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return is_old and all(t.untyped_storage()._cdata in self._memories for t in tensors)

    def _add_constants(self, leaves: list[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and key_of(leaf) not in self.registers:
                self._views.add(self._add_constant(leaf))


def _is_plain(kind: Any) -> bool:
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _is_on_card(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "hpu"


def _names_card(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "hpu"
