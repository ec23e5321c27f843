"""Implements make_graphed_callables: forward and backward are two graphs, joined by autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .._lifecycle import synchronize
from ..streams import default_stream
from . import checks
from .context import capturing
from .graph import HPUGraph

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Graphed:
    """One callable and its two graphs, with the memory that they work on."""

    function: Callable[..., Any]
    args: Tensors
    parameters: Tensors
    asynchronous: bool
    disable_tensor_cache: bool
    dry_run: bool
    outputs: Tensors = ()
    output_was_tensor: bool = False
    grad_outputs: tuple[torch.Tensor | None, ...] = ()
    grad_inputs: tuple[torch.Tensor | None, ...] = ()

    def __post_init__(self) -> None:
        self.forward_graph = HPUGraph()
        self.backward_graph = HPUGraph()

    @property
    def is_dry(self) -> bool:
        return self.disable_tensor_cache or self.dry_run

    def capture_forward(self, watch: checks.Watch | None) -> None:
        """Captures the forward; autograd keeps what the backward needs."""
        with capturing(self.forward_graph, default_stream(), self.is_dry):
            if self.disable_tensor_cache:
                self.forward_graph.mark_user_inputs(self.args)
            outputs = self.function(*self.args)
        if watch is not None:
            watch.end(self.forward_graph)
        self.output_was_tensor = isinstance(outputs, torch.Tensor)
        self.outputs = (outputs,) if self.output_was_tensor else tuple(outputs)

    def capture_backward(self, allow_unused_input: bool) -> None:
        """Captures the backward, whose gradients get memory of their own."""
        surface = self.args + self.parameters
        wanted = tuple(tensor for tensor in surface if tensor.requires_grad)
        outputs = tuple(output for output in self.outputs if output.requires_grad)
        self.grad_outputs = tuple(
            torch.empty_like(output) if output.requires_grad else None for output in self.outputs
        )
        given = tuple(grad for grad in self.grad_outputs if grad is not None)
        with capturing(self.backward_graph, default_stream(), self.is_dry):
            if self.disable_tensor_cache:
                self.backward_graph.mark_user_inputs(given + self.args)
            grads: Any = torch.autograd.grad(
                outputs,
                wanted,
                given,
                only_inputs=True,
                allow_unused=allow_unused_input,
                materialize_grads=allow_unused_input,
            )
        found = iter(grads)
        self.grad_inputs = tuple(next(found) if t.requires_grad else None for t in surface)
        # The captured graphs keep the activations, so autograd's graph need not keep them, too.
        self.outputs = tuple(output.detach() for output in self.outputs)
        if self.disable_tensor_cache:
            self._release(given)

    def _release(self, given: Tensors) -> None:
        """Frees the inputs of the capture in whose place replays read the caller's."""
        matched = self.forward_graph.get_user_input_match_indices()
        in_backward = self.backward_graph.get_user_input_match_indices()
        matched |= {position - len(given) for position in in_backward}
        self.args = tuple(
            torch.empty(0) if i in matched else tensor for i, tensor in enumerate(self.args)
        )
        self.grad_outputs = tuple(
            grad if grad is None else torch.empty(0) for grad in self.grad_outputs
        )

    def replay_forward(self, inputs: Tensors) -> Tensors:
        """Runs the forward on new inputs."""
        if self.disable_tensor_cache:
            matched = self.forward_graph.get_user_input_match_indices()
            for i, (static, new) in enumerate(zip(self.args, inputs, strict=False)):
                if i not in matched and static.numel() == new.numel():
                    static.copy_(new)
            self.forward_graph.replayV3(inputs[: len(self.args)], self.asynchronous)
        else:
            for static, new in zip(self.args, inputs, strict=False):
                if static is not new:
                    static.copy_(new)
            self.forward_graph.replay(self.asynchronous)
        return tuple(output.detach() for output in self.outputs)

    def replay_backward(
        self, grads: tuple[torch.Tensor | None, ...], inputs: Tensors
    ) -> tuple[torch.Tensor | None, ...]:
        """Runs the backward on new gradients."""
        num_inputs = len(self.grad_inputs) - len(self.parameters)
        checks.own_gradients(self.parameters, self.grad_inputs[num_inputs:])
        pairs = [
            (static, grad)
            for static, grad in zip(self.grad_outputs, grads, strict=True)
            if static is not None
        ]
        if self.disable_tensor_cache:
            given = tuple(grad for _, grad in pairs if grad is not None)
            self.backward_graph.replayV3(given + inputs, self.asynchronous)
        else:
            for static, grad in pairs:
                static.copy_(grad)
            self.backward_graph.replay(self.asynchronous)
        return tuple(grad if grad is None else grad.detach() for grad in self.grad_inputs)


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    warmups: int = 0,
    allow_unused_input: bool = False,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
) -> Any:
    """Captures the forward and the backward of functions or modules.

    A call replays the graphs on new values of the same shapes. Gradients are the same memory at
    every replay.

    Args:
        callables: A function or module, or a tuple of them in the order in which they run.
        sample_args: A tuple of tensors, or one for each callable. The graphs work on them.
        warmups: How often each runs forward and backward before its capture.
        allow_unused_input: Whether inputs may go unused; their gradients are zero.
        asynchronous: Whether a replay returns at once; no effect here.
        disable_tensor_cache: Whether replays read the new inputs where they are.
        dry_run: Whether a capture only finds out what runs.

    Returns:
        As `callables`: modules themselves with another forward, used while their training mode is
        that of the capture; functions that take tensors.

    Raises:
        AssertionError: A module has hooks, or buffers that require gradients; an argument is no
            tensor.
        RuntimeError: The process is in eager mode, or something cannot be captured.

    Source: `hpu/graphs.py`, 1.24.0.
    """
    is_one = not isinstance(callables, tuple)
    functions = (callables,) if is_one else callables
    all_args = (sample_args,) if is_one else sample_args
    modes = (asynchronous, disable_tensor_cache, dry_run)
    graphed = []
    for function, args in zip(functions, all_args, strict=True):
        _check(function, args)
        graphed.append(Graphed(function, tuple(args), parameters_of(function), *modes))
    for each in graphed:
        _warm_up(each, warmups, allow_unused_input)
    capture_all(graphed, allow_unused_input)
    results = tuple(callable_of(each) for each in graphed)
    return results[0] if is_one else results


def capture_all(
    graphed: list[Graphed], allow_unused_input: bool, watch: checks.Watch | None = None
) -> None:
    """Captures the forwards in their order, then the backwards in the reverse one."""
    synchronize()
    for each in graphed:
        each.capture_forward(watch)
    for each in reversed(graphed):
        each.capture_backward(allow_unused_input)


def _check(function: Any, args: Any) -> None:
    if isinstance(function, torch.nn.Module):
        if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
            raise AssertionError(
                f"{type(function).__name__} has hooks, which a graph would not call. Register "
                "them after make_graphed_callables."
            )
        if any(buffer.requires_grad for buffer in function.buffers()):
            raise AssertionError(
                f"A buffer of {type(function).__name__} requires gradients. Make it a parameter: "
                "make_graphed_callables trains parameters alone."
            )
    kinds = [type(arg).__name__ for arg in args if not isinstance(arg, torch.Tensor)]
    if kinds:
        raise AssertionError(
            f"make_graphed_callables takes tuples of tensors as sample_args, got {', '.join(kinds)}"
            " among them. Bind other arguments in the callable."
        )


def parameters_of(function: Any) -> Tensors:
    return tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()


def _warm_up(each: Graphed, warmups: int, allow_unused: bool) -> None:
    wanted = tuple(t for t in each.args + each.parameters if t.requires_grad)
    for _ in range(warmups):
        outputs = each.function(*each.args)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        outputs = tuple(output for output in outputs if output.requires_grad)
        grads = tuple(torch.zeros_like(output) for output in outputs)
        torch.autograd.grad(outputs, wanted, grads, only_inputs=True, allow_unused=allow_unused)


def callable_of(each: Graphed) -> Any:
    """Returns the function, or the module with another forward, that replays the graphs."""

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
            if each.disable_tensor_cache:
                ctx.save_for_backward(*inputs[: len(each.args)])
            return each.replay_forward(inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return each.replay_backward(grads, ctx.saved_tensors)

    def graphed(*user_args: torch.Tensor) -> Any:
        outputs = Replay.apply(*user_args, *each.parameters)
        return outputs[0] if each.output_was_tensor else outputs

    module = each.function
    if not isinstance(module, torch.nn.Module):
        return graphed
    was_training, original = module.training, module.forward

    def forward(*user_args: torch.Tensor) -> Any:
        return (graphed if module.training == was_training else original)(*user_args)

    module.forward = forward
    return module
