"""Reports what torch's compiler could not trace, once for each cause, with the user's line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from traceback import FrameSummary
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Module

_OF_LIGHTNING = ("/lightning/", "/pytorch_lightning/", "/lightning_fabric/")
"""Folders whose lines no user can change, such as `self.log`, which has to break a graph."""
_NOISE = ("Attempt to trace generator",)
"""Reasons that are not about the user's code."""
_INSTEAD = (
    "Change that line, or leave modules as they are with compile='none' in the strategy or "
    "LIGHTNING_GAUDI_COMPILE=none."
)

_FEWER = (
    "Generate with lightning_gaudi.inference.TextGenerator or a static cache, whose shapes stay, "
    "or pad batches to fewer shapes."
)


class GraphBreakReporter:
    """Checks after each call whether the compiler has given anything up.

    Args:
        raises: Whether it is an error if something cannot be compiled. `torch.compile` is called
            with fullgraph=True then, and raises itself.
    """

    def __init__(self, *, raises: bool) -> None:
        from torch._dynamo import utils

        self.raises = raises
        self._utils = utils
        self._told: set[object] = set()
        self._left: set[type] = set()
        self._limits: list[tuple[Any, ...]] = []
        # The compiler tells of a reached limit only in its log (2.6 to 2.13).
        logging.getLogger("torch._dynamo.convert_frame").addFilter(self._note_limit)

    def close(self) -> None:
        """Stops watching."""
        logging.getLogger("torch._dynamo.convert_frame").removeFilter(self._note_limit)

    def count(self) -> tuple[int, int, int]:
        """Returns the numbers of breaks, losses and graphs so far, for `tell_since`."""
        counters = self._utils.counters
        num_graphs = counters["stats"]["unique_graphs"]
        return len(self._utils.graph_break_reasons), len(counters["unimplemented"]), num_graphs

    def tell_since(self, before: tuple[int, int, int], module: Module) -> bool:
        """Reports what was given up in a call of `module`.

        Args:
            before: The result of `count` before the call.
            module: For messages.

        Returns:
            Whether it has compiled a graph.
        """
        # Two plain calls instead of a context manager, since this runs in each step.
        now = self.count()
        if now == before and not self._limits:
            return False
        num_breaks, num_losses, num_graphs = before
        breaks, losses = self._utils.graph_break_reasons, self._utils.counters["unimplemented"]
        for reason in breaks[num_breaks:]:
            self._tell_break(module, reason.reason, reason.user_stack)
        if len(breaks) == num_breaks and len(losses) > num_losses:
            for loss in [*losses][num_losses:]:
                self._tell_loss(module, loss)
        while self._limits:
            self._tell_limit(module, *self._limits.pop())
        return now[2] > num_graphs

    def is_left(self, kind: type) -> bool:
        """Returns whether modules of a class run uncompiled when gradients are off."""
        return kind in self._left

    def leave(self, module: Module) -> None:
        """Lets modules of a class run uncompiled when gradients are off, with a warning.

        Raises:
            RuntimeError: What is not compiled is an error.
        """
        text = (
            f"{_name(module)}, called without gradients, has compiled a graph at each of many "
            "calls in a row, as where text is generated token by token"
        )
        if self.raises:
            raise RuntimeError(f"{text}, and on_give_up='error' asks for compiled code. {_FEWER}")
        self._left.add(type(module))
        self._tell(
            (type(module), "calls"),
            f"{text}: without gradients it goes on operator by operator. {_FEWER}",
        )

    def refuse(self, module: Module, error: Exception) -> None:
        """Raises an error for a module that cannot be compiled.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"torch.compile cannot make one graph of {_name(module)}, and on_give_up='error' asks "
            f"for that. {_INSTEAD} The compiler says: {error}"
        ) from error

    def tell_failure(self, module: Module, error: Exception) -> None:
        """Warns of a module that runs uncompiled from now on."""
        self._tell(
            (type(module), type(error)),
            f"torch.compile fails at {_name(module)}, which goes on operator by operator. "
            f"{_INSTEAD} The compiler says: {type(error).__name__}: {_first(str(error))}",
        )

    def tell_changed(self, module: Module) -> None:
        """Warns of a module that runs uncompiled since a class of it has changed."""
        self._tell(
            (type(module), "class"),
            f"{_name(module)} was compiled, and its class, or a method of a class of modules in "
            "it, is another now: it goes on operator by operator. What is changed before the fit "
            "is compiled.",
        )

    def tell_global_hook(self, module: Module) -> None:
        """Warns of hooks on all modules, with which modules run uncompiled."""
        self._tell(
            "hook",
            f"A hook is on all modules (register_module_forward_hook or the like): {_name(module)} "
            "and all others that are compiled run operator by operator until it is removed.",
        )

    def _note_limit(self, record: logging.LogRecord) -> bool:
        if "hit config." in str(record.msg) and isinstance(record.args, tuple):
            self._limits.append(record.args)
        return True

    def _tell_break(self, module: Module, reason: str, stack: Sequence[FrameSummary]) -> None:
        # The compiler names a branch after an instruction of the bytecode.
        if reason.startswith("generic_jump"):
            reason = "a branch that depends on a tensor's values"
        if any(folder in frame.filename for frame in stack for folder in _OF_LIGHTNING):
            return
        # `torch.compiler.disable` was somebody's choice.
        if "disable()" in reason:
            return
        where = f" at {stack[-1].filename}:{stack[-1].lineno} ({stack[-1].line})" if stack else ""
        self._tell(
            where or reason,
            f"torch.compile cuts {_name(module)} into several graphs{where}: {_first(reason)}. "
            f"What lies between them runs operator by operator. {_INSTEAD}",
        )

    def _tell_loss(self, module: Module, reason: str) -> None:
        if "limit exceeded" in reason or any(noise in reason for noise in _NOISE):
            return
        self._tell(
            reason,
            f"torch.compile leaves a function that {_name(module)} calls as it is, operator by "
            f"operator: {_first(reason)}. {_INSTEAD}",
        )

    def _tell_limit(self, module: Module, *args: Any) -> None:
        kind, limit, function, reason = args[:4]
        self._tell(
            function,
            f"torch.compile has made {limit} graphs of {function}, called by {_name(module)}, and "
            f"makes no more: calls that fit none of them run operator by operator. The last one "
            f"did not fit since {_first(str(reason))}. Pad batches to fewer shapes, or raise "
            f"Compilation(recompile_limit=...) ({kind}).",
        )

    def _tell(self, cause: object, text: str) -> None:
        if cause not in self._told:
            self._told.add(cause)
            rank_zero_warn(text)


def _name(module: Module) -> str:
    return type(module).__name__


def _first(reason: str) -> str:
    """Returns a reason and its explanation, without the compiler's hints."""
    lines = [line.strip() for line in reason.strip().splitlines()]
    kept = [line.removeprefix("Explanation: ") for line in lines[:2] if line]
    return " ".join(kept).rstrip(".")
