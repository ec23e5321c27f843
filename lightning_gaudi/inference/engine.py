"""Runs one step again and again: captured as an HPU graph, compiled, or as it is.

A captured graph costs the host one call, whatever is in it. A compiled step costs the same, and its
guards. Both need the same tensors, or tensors of the same shapes, each time.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lightning_gaudi._core import vendor

Engine: TypeAlias = Literal["auto", "graph", "compile", "none"]
"""How a step is run. "auto" is "graph" in lazy mode and "compile" in eager mode. It is "none" on
other devices, and for weights in shards of ZeRO-3."""

_numbers = itertools.count()


def resolve(
    engine: Engine, device: torch.device | str, model: torch.nn.Module | None = None
) -> Engine:
    """Returns what `engine` means on a device: "graph", "compile" or "none".

    Args:
        engine: See `Engine`.
        device: The device on which the step runs.
        model: The model of the step, if it has one.

    Raises:
        ValueError: There is no such engine, the device does not have it in this mode, or the
            model's weights are in shards of ZeRO-3.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"engine={engine!r} is none of {', '.join(map(repr, get_args(Engine)))}.")
    kind = torch.device(device).type
    if kind != "hpu":
        if engine in ("graph", "compile"):
            raise ValueError(
                f"engine={engine!r} is for the HPU, and this runs on {kind!r}. Move the model "
                "there, or pass engine='auto' or 'none'."
            )
        return "none"
    if model is not None and is_gathered(model):
        # Hooks bring the weights of each layer to the card and take them away again, so that they
        # have no address that a graph could read from.
        if engine in ("graph", "compile"):
            raise ValueError(
                f"engine={engine!r} wants the weights where they are, and ZeRO-3 gathers them "
                "layer by layer as the model runs. Pass engine='none' or 'auto', or take ZeRO-2."
            )
        return "none"
    if engine == "auto":
        return "graph" if vendor.is_lazy() else "compile"
    if engine == "graph" and not vendor.is_lazy():
        raise ValueError(
            "engine='graph' captures HPU graphs, which the vendor has in lazy mode only, and this "
            "process is in eager mode. Set PT_HPU_LAZY_MODE=1 before it starts, or pass "
            "engine='compile' or 'auto'."
        )
    if engine == "compile" and vendor.is_lazy():
        raise ValueError(
            "engine='compile' is for eager mode: in lazy mode the vendor's bridge compiles by "
            "itself. Set PT_HPU_LAZY_MODE=0 before the process starts, or pass engine='graph' or "
            "'auto'."
        )
    return engine


def is_gathered(model: torch.nn.Module) -> bool:
    """Returns whether a model's weights are in shards of ZeRO-3, which ranks gather in a run."""
    return any(hasattr(each, "ds_tensor") for each in model.parameters())


class Runner:
    """Runs one step again and again.

    The step may read tensors that it closes over, such as a cache, and update them in place. They
    must be the same objects each time. It runs without gradients, and never in torch's inference
    mode, whose tensors cannot be updated outside of it. A captured graph is tied to the memory of
    these tensors, and keeps no copy of them.

    Args:
        step: Takes tensors of the same shapes and dtypes at each call, and returns one or several.
            A capture runs its Python once, so that anything but tensors stays as it was then.
        engine: See `Engine`.
        device: The device on which the step runs.

    Raises:
        ValueError: See `resolve`.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        engine: Engine = "auto",
        *,
        device: torch.device | str = "hpu",
    ) -> None:
        self.engine = resolve(engine, device)
        """"graph", "compile" or "none"."""
        self.num_captures = 0
        """The number of graphs that were captured, 0 or 1."""
        self._is_lazy = torch.device(device).type == "hpu" and vendor.is_lazy()
        self._step = _compiled(step) if self.engine == "compile" else step
        self._graph: Any = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result: Any = None

    def __call__(self, *tensors: Tensor) -> Any:
        """Runs the step.

        Args:
            tensors: The arguments of the step. A capture copies them into tensors of its own.

        Returns:
            The result of the step. With a graph these are the same tensors each time, which the
            next call overwrites.

        Raises:
            ValueError: A graph was captured for other shapes or dtypes.
        """
        with torch.inference_mode(False), torch.no_grad():
            if self.engine == "graph":
                return self._replay(tensors) if self._graph is not None else self._capture(tensors)
            if not self._is_lazy:
                return self._step(*tensors)
            vendor.mark_step()
            result = self._step(*tensors)
            vendor.mark_step()
            return result

    def _capture(self, tensors: tuple[Tensor, ...]) -> Any:
        # Copies, since the next call writes into the captured tensors, and must not overwrite the
        # caller's.
        inputs = tuple(tensor.clone() for tensor in tensors)
        vendor.mark_step()
        graph = vendor.hpu_graph()
        with vendor.capture(graph):
            result = self._step(*inputs)
        # Set only now, so that a step that has failed is captured anew.
        self._graph, self._inputs, self._result = graph, inputs, result
        self.num_captures = 1
        return result

    def _replay(self, tensors: tuple[Tensor, ...]) -> Any:
        given = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        wanted = [(tuple(tensor.shape), tensor.dtype) for tensor in self._inputs]
        if given != wanted:
            raise ValueError(
                f"The HPU graph was captured for {wanted}, and is called with {given}. Make a "
                "Runner for each set of shapes."
            )
        for own, tensor in zip(self._inputs, tensors, strict=True):
            own.copy_(tensor)
        if tensors:
            vendor.mark_step()
        self._graph.replay()
        return self._result


def _compiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the step, compiled as one graph, with a limit of recompilations of its own.

    torch counts recompilations by code object, and gives up after 8. So each step gets a code
    object of its own, since there may be more buckets than that.
    """

    def call(*tensors: Tensor) -> Any:
        return step(*tensors)

    name = f"{getattr(step, '__name__', 'step')}_{next(_numbers)}"
    code = call.__code__.replace(co_name=name)
    own = types.FunctionType(code, call.__globals__, name, None, call.__closure__)
    compiled: Callable[..., Any] = torch.compile(
        own, backend=vendor.COMPILE_BACKEND, fullgraph=True, dynamic=False
    )
    return compiled
