"""`compile="model"` in the Trainer: the steps of a LightningModule, as if its user compiled it."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities.compile import from_compiled, to_uncompiled
from torch.nn import Module

from lightning_gaudi.compilation.giving_up import Watch
from lightning_gaudi.compilation.model import arguments
from lightning_gaudi.compilation.settings import Compilation

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_LOG = ("log", "log_dict")


class CompiledSteps:
    """A LightningModule with compiled steps, until `remove`; see `trainer.fit(torch.compile(...))`.

    Args:
        module: A LightningModule.
        compilation: How.
    """

    def __init__(self, module: Module, compilation: Compilation) -> None:
        self.watch = Watch(raises=compilation.on_give_up == "error")
        # Each step has another batch_idx, which dynamic=False would make a graph of.
        settings = {**arguments(compilation), "dynamic": compilation.dynamic or None}
        compiled: Any = torch.compile(module, **settings)
        self._module: Any = from_compiled(compiled)
        for name in _STEPS:
            setattr(module, name, self._watched(getattr(module, name)))
        # Lightning's bookkeeping is other code in each loop and epoch, and computes nothing.
        for name in _LOG:
            untraced = torch.compiler.disable(getattr(module, name))  # type: ignore[no-untyped-call]
            setattr(module, name, untraced)

    def _watched(self, step: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = self.watch.count()
            result = step(*args, **kwargs)
            self.watch.tell_since(before, self._module)
            return result

        return watched

    def remove(self) -> None:
        """Leave the module as it was."""
        self.watch.close()
        if self._module._compiler_ctx is not None:
            to_uncompiled(self._module)
            for name in ("forward", *_STEPS, *_LOG):
                vars(self._module).pop(name, None)
