"""Joins a model and its graphs for one kind of input."""

from __future__ import annotations

import collections
import copy
import inspect
from typing import Any

import torch

from . import checks
from .callables import Graphed, callable_of, capture_all, parameters_of
from .packer import TensorPacker


class GraphModel(torch.nn.Module):
    """A model with the graphs for one kind of input.

    Args:
        model: The model.
        allow_unused_input: See `make_graphed_callables`.
        asynchronous: Likewise.
        disable_tensor_cache: Likewise.
        dry_run: Likewise.

    Raises:
        AssertionError: The model is wrapped for data parallel training, or its forward takes
            positional arguments without names.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        allow_unused_input: bool = False,
        asynchronous: bool = False,
        disable_tensor_cache: bool = False,
        dry_run: bool = False,
    ) -> None:
        super().__init__()
        refuse_data_parallel(model)
        self.model = model
        self.input_packer = TensorPacker()
        self.input_meta: Any = None
        self.output_packer = TensorPacker(is_out_pack=True)
        self.output_meta: Any = None
        self.func_parameters = process_function_signature(model.forward)
        self.allow_unused_input = allow_unused_input
        self.modes = (asynchronous, disable_tensor_cache, dry_run)
        self.watch: checks.Watch | None = None

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Calls the model with tensors in the places of those of the capture."""
        outs = self.model(**self.input_packer.unpack(args, self.input_meta))
        tensors, self.output_meta = self.output_packer.pack(outs)
        return tensors

    def init_hpu_graph(self, *args: Any, **kwargs: Any) -> None:
        """Captures forward and backward for inputs of this kind."""
        full_args = get_full_args(self.func_parameters, *args, **kwargs)
        tensors, self.input_meta = self.input_packer.pack(full_args)
        self.watch = checks.Watch.begin(self.model, full_args)
        graphed = Graphed(self, tensors, parameters_of(self), *self.modes)
        capture_all([graphed], self.allow_unused_input, self.watch)
        self.hpu_graph = callable_of(graphed)

    def graph_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replays the forward; its backward is replayed by autograd."""
        full_args = get_full_args(self.func_parameters, *args, **kwargs)
        if self.watch is not None:
            self.watch.check(full_args)
        tensors, _ = self.input_packer.pack(full_args)
        return self.output_packer.unpack(self.hpu_graph(*tensors), self.output_meta)


def refuse_data_parallel(model: torch.nn.Module) -> None:
    """Checks that the model is not wrapped for data parallel training.

    Raises:
        AssertionError: It is.
    """
    if isinstance(
        model, torch.nn.parallel.DataParallel | torch.nn.parallel.DistributedDataParallel
    ):
        raise AssertionError(
            f"ModuleCacher got a {type(model).__name__}, whose collectives and hooks a graph does "
            "not replay. Give the model to ModuleCacher first, and the result to "
            f"{type(model).__name__}."
        )


def process_function_signature(function: Any) -> collections.OrderedDict[str, Any]:
    """Returns the defaults of a function's arguments by name.

    Raises:
        AssertionError: It takes positional arguments without names.
    """
    parameters = collections.OrderedDict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise AssertionError(
                f"ModuleCacher does not support the argument {parameter} of forward: it has to be "
                "given by name. Name the model's arguments."
            )
        if parameter.kind == parameter.VAR_KEYWORD:
            print(f"[WARNING] {parameter} of forward is not supported: name what it takes.")
        else:
            parameters[name] = parameter.default
    return parameters


def get_full_args(
    forward_params: collections.OrderedDict[str, Any], *args: Any, **kwargs: Any
) -> collections.OrderedDict[str, Any]:
    """Returns all arguments of a call by name, with the defaults of those that were not given."""
    full_args = copy.copy(forward_params)
    full_args.update(zip(full_args, args, strict=False))
    full_args.update(kwargs)
    return full_args
