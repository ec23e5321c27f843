"""The custom operators `torch.ops.hpu.*`, computed by torch operators on the device.

Schemas are the vendor's (release 1.19); `optimizer_adamw` has another one in lazy mode.
"""

from . import attention, gradient_descent, moving_average, normalization, optimizers

__all__ = ["attention", "gradient_descent", "moving_average", "normalization", "optimizers"]
