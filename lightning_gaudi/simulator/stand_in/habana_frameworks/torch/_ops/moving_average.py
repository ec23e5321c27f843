"""Updates moving averages of lists of tensors."""

from __future__ import annotations

import torch

from ._library import check_tensors, operator

Tensors = list[torch.Tensor]


@operator("optimizer_ema(Tensor[] model_inputs, Tensor(a!)[] updated_ema, Tensor decay) -> ()")
def optimizer_ema(model_inputs: Tensors, updated_ema: Tensors, decay: torch.Tensor) -> None:
    """Moves averages in place: `e = e * decay + x * (1 - decay)`.

    An average of integers is rounded toward zero; what a card does to those is not known.
    """
    check_tensors("optimizer_ema", model_inputs=model_inputs, updated_ema=updated_ema)
    decay = decay.reshape(())
    for value, average in zip(model_inputs, updated_ema, strict=True):
        average.copy_(average * decay + value * (1.0 - decay))
