"""Accumulates gradients of several batches for one step in a loop of the user's own.

Such loops are Fabric's, and those of modules with manual optimization.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._patches.apply import add, replace

_PATCH = "deepspeed-step"

ATTRIBUTE = "_lightning_gaudi_accumulation"
"""The attribute of engines and their optimizers that holds their `Accumulation`."""


class Accumulation:
    """Tells one of DeepSpeed's engines about the loop around it.

    Either the loop accumulates, and divides its loss and steps once for several batches; or
    DeepSpeed does, with `gradient_accumulation_steps` in its configuration, and the loop steps
    after each batch, which has an effect only at the last of them.
    """

    def __init__(self, engine: Any, optimizer: Any) -> None:
        """Attaches to an engine and its optimizer.

        Args:
            engine: DeepSpeed's; it is not kept alive.
            optimizer: Its optimizer, whose `zero_grad` keeps what DeepSpeed accumulates.
        """
        self._engine = weakref.ref(engine)
        self._num_steps: int = engine.gradient_accumulation_steps()
        self._num_backwards = 0
        self._is_last = True
        self._has_reduced = False
        self._is_stepping = False
        for each in (engine, optimizer):
            add(_PATCH, each, ATTRIBUTE, self)
        # A loop may also call `engine.step()` itself.
        replace(_PATCH, engine, "step", self.step)
        if self._num_steps > 1:
            _keep_gradients(optimizer)

    @contextmanager
    def of(self, *, is_last: bool) -> Generator[None, None, None]:
        """Marks a batch in the block, whose gradients are reduced only if it `is_last`.

        Raises:
            MisconfigurationException: DeepSpeed accumulates.
        """
        if self._num_steps > 1:
            raise MisconfigurationException(
                f"DeepSpeed's configuration has gradient_accumulation_steps={self._num_steps}, but "
                "Fabric.no_backward_sync() accumulates, too. Leave one of them out: without it in "
                "the configuration, the loop divides its loss and steps once for several batches."
            )
        self._mark(is_last=is_last)
        try:
            yield
        finally:
            self._mark(is_last=True)

    def _mark(self, *, is_last: bool) -> None:
        self._is_last = is_last
        self._found_engine.set_gradient_accumulation_boundary(is_last)

    def note_backward(self) -> None:
        """Counts a backward that is about to run.

        Raises:
            MisconfigurationException: DeepSpeed would silently compute something else.
        """
        self._num_backwards += 1
        if self._num_steps > 1 and self._num_backwards > 1:
            raise MisconfigurationException(
                f"DeepSpeed's configuration has gradient_accumulation_steps={self._num_steps}, "
                "but there was a second backward before optimizer.step(). Call it after each: "
                "DeepSpeed counts them and steps when it is time. Or leave the setting out."
            )
        # Stage 0 adds up reduced gradients, and stage 3 its shards of them; stages 1 and 2
        # overwrite theirs.
        stage = self._found_engine.zero_optimization_stage()
        if self._has_reduced and stage in (1, 2):
            raise MisconfigurationException(
                "There was a second backward before optimizer.step(), of which ZeRO stage "
                f"{stage} keeps the last alone. Put each batch but the last into `with "
                "fabric.no_backward_sync(model):`, its forward and its backward."
            )
        self._has_reduced = self._is_last

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Lets DeepSpeed step, or count a batch towards its next step.

        Raises:
            MisconfigurationException: The last gradients have not been reduced.
        """
        if self._num_backwards and not self._has_reduced:
            raise MisconfigurationException(
                "optimizer.step() follows a backward in Fabric.no_backward_sync(), whose gradients "
                "are not those of all ranks. Leave the last batch before a step out of it."
            )
        self._num_backwards = 0
        self._has_reduced = False
        self._is_stepping = True
        try:
            type(self._found_engine).step(self._found_engine, *args, **kwargs)
        finally:
            self._is_stepping = False

    @property
    def _found_engine(self) -> Any:
        engine = self._engine()
        assert engine is not None
        return engine

    @property
    def _keeps_gradients(self) -> bool:
        """Whether DeepSpeed has accumulated gradients that it has not stepped with."""
        is_within = self._num_backwards > 0 or self._found_engine.micro_steps % self._num_steps > 0
        return is_within and not self._is_stepping


def _keep_gradients(optimizer: Any) -> None:
    """Makes the optimizer's `zero_grad`, which a loop calls often, wait for a real step."""
    kind: Any = type(optimizer)

    # `self` may be Fabric's wrapper of the optimizer, which takes methods from its class. So the
    # class is replaced, and not the method of this instance.
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(self, ATTRIBUTE)._keeps_gradients:
            kind.zero_grad(self, *args, **kwargs)

    keeping = {"__module__": kind.__module__, "zero_grad": zero_grad}
    replace(_PATCH, optimizer, "__class__", type(kind.__name__, (kind,), keeping))


_OPTION = "managed_gradient_accumulation"


def stepped_by_user(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with which DeepSpeed reduces gradients only when it is told to step.

    By default it takes each backward for the last before a step, and in ZeRO-1 and 2 a second one
    would discard the gradients of the first.

    Args:
        config: DeepSpeed's settings; not changed.

    Raises:
        MisconfigurationException: The installed DeepSpeed cannot, as before 0.19.4.
    """
    zero = dict(config.get("zero_optimization") or {})
    is_known = hasattr(importlib.import_module("deepspeed.runtime.constants"), _OPTION.upper())
    if not is_known and zero.get("stage") in (1, 2):
        raise MisconfigurationException(
            f"automatic_optimization=False with ZeRO stage {zero['stage']} needs deepspeed 0.19.4 "
            "or later: this one would lose gradients where there are several backward passes to a "
            "step. Upgrade deepspeed, or use stage 3."
        )
    if not is_known:
        return dict(config)
    if zero.get("stage", 0) < 2:
        # DeepSpeed refuses this setting of Lightning's here, since it has nothing to overlap.
        zero["overlap_comm"] = False
    return {**config, "zero_optimization": zero, _OPTION: False}


def tell_boundary(engine: Any, *, is_last: bool) -> None:
    """Tells an engine whether the next backward is the last before a step, if it wants to know.

    Args:
        engine: DeepSpeed's.
        is_last: Whether it is.
    """
    if getattr(engine, _OPTION, lambda: True)():
        engine.set_gradient_accumulation_boundary(is_last)
