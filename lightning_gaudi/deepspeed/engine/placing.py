"""A model's move to the card, before DeepSpeed would move it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from lightning_gaudi._core.tied_weights import kept_tied

from ...distributed import DEVICE


def move(model: Module, optimizer: Optimizer | None = None) -> None:
    """Move a model to the card, and its optimizer with it.

    A move to an HPU may give the model new parameters. DeepSpeed moves it without a thought of the
    optimizer, which would go on with those on the CPU: in stage 0 nothing would be trained.

    Args:
        model: Weights of it that are in shards stay where they are.
        optimizer: Of some of its parameters.
    """
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return
    before = dict(model.named_parameters())
    with kept_tied(model):
        model.to(DEVICE)
    if optimizer is None:
        return
    replaced = {before[name]: parameter for name, parameter in model.named_parameters()}

    def found(parameter: Tensor) -> Tensor:
        return replaced.get(parameter, parameter)  # type: ignore[call-overload,no-any-return]

    for group in optimizer.param_groups:
        group["params"] = [found(parameter) for parameter in group["params"]]
    for parameter in [*optimizer.state]:
        optimizer.state[found(parameter)] = optimizer.state.pop(parameter)
