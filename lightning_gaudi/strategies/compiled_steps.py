"""`compile="model"` in the Trainer, which compiles the steps of a LightningModule."""

from __future__ import annotations

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.nn import Module

from lightning_gaudi.compilation.graph_breaks import GraphBreakReporter
from lightning_gaudi.compilation.method import CompiledMethod
from lightning_gaudi.compilation.model import arguments
from lightning_gaudi.compilation.settings import Compilation

_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")
_LOG = ("log", "log_dict")


class CompiledSteps:
    """Compiles the steps of a LightningModule until `remove`, as `torch.compile(module)` would.

    Args:
        module: A LightningModule.
        compilation: How.
    """

    def __init__(self, module: Module, compilation: Compilation) -> None:
        self.reporter = GraphBreakReporter(raises=compilation.on_give_up == "error")
        # `batch_idx` differs in each step, and with dynamic=False each value would be a graph of
        # its own.
        settings = {**arguments(compilation), "dynamic": compilation.dynamic or None}
        self._module = module
        self._methods = [
            CompiledMethod(module, settings, self.reporter, name=name, goes_on=name == "forward")
            for name in _METHODS
            if is_overridden(name, module)
        ]
        for method in self._methods:
            method.install()
        # Lightning's logging takes other branches in each loop and epoch. Traced, each would
        # compile the step again, for code that computes nothing.
        self._log = {name: vars(module).get(name) for name in _LOG}
        for name in _LOG:
            untraced = torch.compiler.disable(getattr(module, name))  # type: ignore[no-untyped-call]
            setattr(module, name, untraced)

    def remove(self) -> None:
        """Leaves the module as it was."""
        self.reporter.close()
        for method in self._methods:
            method.remove()
        for name, own in self._log.items():
            vars(self._module).pop(name, None)
            if own is not None:
                setattr(self._module, name, own)
