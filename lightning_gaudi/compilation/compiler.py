"""`Compiler`: what a strategy compiles of its models, and how its optimizers step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Module

from lightning_gaudi._core import vendor

from . import model
from .foreach import stepping_at_once
from .launches import LaunchAdvice
from .regions import declared_regions, has_compiled_parts
from .settings import Choice


class Compiling(Protocol):
    """What a strategy says of how its models may be compiled."""

    takes_declared_regions: bool
    can_compile: bool
    compiled_whole: Any

    def compile_choice(self) -> Choice:
        """Returns what is to be compiled, and who says so."""


class Compiler:
    """What is compiled of a strategy's models, until `remove`.

    Args:
        strategy: Whose models they are.
    """

    def __init__(self, strategy: Compiling) -> None:
        self._strategy = strategy
        self._compiled: tuple[Any, ...] = ()
        self._steps_at_once: bool | None = None
        self.advice: LaunchAdvice | None = None
        """Tells after some steps that nothing is compiled; None where there is nothing to tell."""

    def compile(self, module: Module, *, with_root: bool) -> None:
        """Compiles what the user, or nobody, has asked to be compiled of a module.

        Args:
            module: The model, before or after it has been wrapped.
            with_root: Whether its user calls it, and not other methods.
        """
        choice, self._steps_at_once = self._strategy.compile_choice(), None
        try:
            self._compile_as_chosen(choice, module, with_root=with_root)
        except Exception as error:
            # By default it is a convenience, which must not end a fit; a user's own error, in what
            # the module names or somebody has asked for, does.
            if choice.origin is not None or isinstance(error, ValueError):
                raise
            rank_zero_warn(
                f"Nothing of {type(module).__name__} is compiled, since looking into it raises "
                f"{type(error).__name__}: {error}. Each operator is a launch of its own. Name the "
                "classes of its blocks, as compile={'regions': ['Block']} in the strategy, or pass "
                "compile='none' to leave it so."
            )

    def remove(self) -> None:
        """Leaves the models as they were."""
        compiled, self._compiled = self._compiled, ()
        for each in compiled:
            each.remove()

    def note_step(self) -> None:
        """The optimizer has made a step."""
        if self.advice is not None:
            self.advice.note_step()

    def stepping(self, optimizer: Any) -> AbstractContextManager[None]:
        """Lets an optimizer step all weights of a group at once in a block, if that is chosen."""
        if self._steps_at_once is None:  # asked once a setup, not in each step
            compilation = self._strategy.compile_choice().compilation
            self._steps_at_once = (
                compilation.mode != "none" and compilation.foreach and not vendor.is_lazy()
            )
        return stepping_at_once(optimizer) if self._steps_at_once else nullcontext()

    def _compile_as_chosen(self, choice: Choice, module: Module, *, with_root: bool) -> None:
        compilation = choice.compilation
        if not model.is_wanted(choice, module):
            self._advise(choice, module)
        elif compilation.mode == "model":
            self._compiled += (self._strategy.compiled_whole(module, compilation),)
        else:
            if compilation.regions is None and self._strategy.takes_declared_regions:
                names = declared_regions(module)
                compilation = replace(compilation, regions=names or None)
            regions = model.CompiledRegions(module, compilation, with_root=with_root)
            self._compiled += (regions,)
            if not regions.modules:
                self.advice = LaunchAdvice(rank_zero_warn)

    def _advise(self, choice: Choice, module: Module) -> None:
        # Who has asked for it knows; a line is enough.
        is_compiled = vendor.is_lazy() or has_compiled_parts(module)
        is_off = choice.compilation.mode == "none" and self._strategy.can_compile
        if is_off and not is_compiled:
            self.advice = LaunchAdvice(rank_zero_info)
