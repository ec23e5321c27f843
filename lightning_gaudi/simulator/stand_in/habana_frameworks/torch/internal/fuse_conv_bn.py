"""Fuses batch norms with the convolutions before them, for fewer operations in inference."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import fx, nn
from torch.nn.utils import fusion

from ..._missing import missing


def check_for_inference_mode(model: nn.Module) -> None:
    """Checks that a model does not train.

    Raises:
        ValueError: It trains.
    """
    if model.training:
        raise ValueError("The model is in training mode. Call model.eval() before fusing it.")


def check_for_model_device(model: nn.Module) -> None:
    """Checks that a model is on the CPU.

    Raises:
        ValueError: A parameter is not on the CPU.
    """
    for name, parameter in model.named_parameters():
        if not parameter.is_cpu:
            raise ValueError(
                f"{name} is on {parameter.device}. Fuse the model before it moves to the HPU."
            )


def fuse_conv_bn_eval(conv: nn.Module, bn: nn.Module) -> nn.Module:
    """Returns a convolution that computes what `conv` and then `bn` compute in evaluation."""
    return fusion.fuse_conv_bn_eval(conv, bn)


def fuse_conv_bn_weights(
    conv_w: torch.Tensor,
    conv_b: torch.Tensor | None,
    bn_rm: torch.Tensor,
    bn_rv: torch.Tensor,
    bn_eps: float,
    bn_w: torch.Tensor | None,
    bn_b: torch.Tensor | None,
) -> tuple[nn.Parameter, nn.Parameter]:
    """Returns the weight and the bias of a convolution that is fused with a batch norm.

    Args:
        conv_w: The weight of the convolution.
        conv_b: The bias of the convolution.
        bn_rm: The running mean.
        bn_rv: The running variance.
        bn_eps: The number that the norm adds to the variance.
        bn_w: The norm's weight.
        bn_b: The norm's bias.
    """
    return fusion.fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def replace_node_module(
    node: fx.Node, modules: dict[str, nn.Module], new_module: nn.Module
) -> None:
    """Replaces the module of a node by another one."""
    parent, _, name = str(node.target).rpartition(".")
    setattr(modules[parent], name, new_module)


def fuse(model: nn.Module) -> nn.Module:
    """Returns a copy of a model with each `BatchNorm2d` fused with the `Conv2d` before it.

    As with the vendor's, a model that trains, that is not on the CPU or that `torch.fx` cannot
    trace is returned as it is, with a warning.
    """
    try:
        check_for_inference_mode(model)
        check_for_model_device(model)
    except ValueError as error:
        warnings.warn(f"Nothing is fused: {error}", stacklevel=2)
        return model
    model = copy.deepcopy(model)
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:
        warnings.warn(f"Nothing is fused: torch.fx cannot trace it: {error}", stacklevel=2)
        return model
    _fuse_nodes(traced)
    return traced


def _fuse_nodes(traced: fx.GraphModule) -> None:
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        before = node.args[0] if node.op == "call_module" else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        bn, conv = modules[str(node.target)], modules[str(before.target)]
        # If something else reads the convolution's result, it needs the one without the norm.
        if type(bn) is nn.BatchNorm2d and type(conv) is nn.Conv2d and len(before.users) == 1:
            fused = fuse_conv_bn_eval(conv, bn)
            replace_node_module(before, modules, fused)
            modules[str(before.target)] = fused
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()


__getattr__ = missing(__name__)
