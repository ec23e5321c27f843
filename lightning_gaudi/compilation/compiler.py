"""`Compiler`, which compiles a strategy's models and speeds up its optimizers' steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Module, Parameter, RNNBase
from torch.optim import Optimizer

from lightning_gaudi._core import vendor

from . import model
from .regions import declared_regions, has_compiled_parts
from .settings import Choice, Compilation


class Compiling(Protocol):
    """The part of a strategy that tells how its models may be compiled."""

    mixes_weights: bool
    """Whether an optimizer's group may have DTensors and plain weights, and be stepped at once."""

    def takes_declared_regions(self, module: Module) -> bool:
        """Returns whether a model's `compile_regions` holds."""

    def compile_choice(self) -> Choice:
        """Returns what is to be compiled, and the origin of that choice."""

    def compile_whole(self, module: Module, compilation: Compilation) -> Any:
        """Compiles a whole model for `compile="model"`; the result has a `remove`."""

    def prepare_regions(self, modules: Sequence[Module]) -> Any:
        """Prepares modules that are now compiled, until its `remove` is called; None for nothing.

        Args:
            modules: The regions, and those in them that may be called in their place.
        """


class Compiler:
    """Compiles a strategy's models until `remove`.

    Args:
        strategy: Whose models they are.
    """

    explaining = staticmethod(model.explaining_double_backward)
    """A block with a backward pass, whose error about compiled code it explains."""

    def __init__(self, strategy: Compiling) -> None:
        self._strategy = strategy
        self._compiled: tuple[Any, ...] = ()
        self._steps_at_once: bool | None = None
        self.advice: LaunchAdvice | None = None
        """Advice that is given after some steps if nothing is compiled, or None."""

    def compile(self, module: Module, *, with_root: bool) -> None:
        """Compiles a module as the user has chosen, or by default.

        Args:
            module: The model, before or after it has been wrapped.
            with_root: Whether the user calls the module itself, and not other methods of it.
        """
        choice, self._steps_at_once = self._strategy.compile_choice(), None
        try:
            self._compile_as_chosen(choice, module, with_root=with_root)
        except Exception as error:
            # The default is a convenience and must not end a fit. An error in what the user has
            # asked for, or in what the module declares, does end it.
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
        """Notes that the optimizer has made a step."""
        if self.advice is not None:
            self.advice.note_step()

    def stepping(self, optimizer: Any) -> AbstractContextManager[None]:
        """Returns a block in which an optimizer steps all weights of a group at once, if chosen."""
        # Decided once for each setup, since this runs in every step.
        if self._steps_at_once is None:
            compilation = self._strategy.compile_choice().compilation
            self._steps_at_once = (
                compilation.mode != "none" and compilation.foreach and not vendor.is_lazy()
            )
        if not self._steps_at_once:
            return nullcontext()
        return stepping_at_once(optimizer, self._strategy.mixes_weights)

    def _compile_as_chosen(self, choice: Choice, module: Module, *, with_root: bool) -> None:
        compilation = choice.compilation
        if not model.is_wanted(choice, module):
            self._advise(choice, module)
        elif compilation.mode == "model":
            self._compiled += (self._strategy.compile_whole(module, compilation),)
        else:
            if compilation.regions is None and self._strategy.takes_declared_regions(module):
                names = declared_regions(module)
                compilation = replace(compilation, regions=names or None)
            regions = model.CompiledRegions(module, compilation, with_root=with_root)
            self._compiled += (regions,)
            if (prepared := self._strategy.prepare_regions(regions.compiled)) is not None:
                self._compiled += (prepared,)
            if not regions.modules:
                self.advice = LaunchAdvice(rank_zero_warn, _why_no_region(module))

    def _advise(self, choice: Choice, module: Module) -> None:
        # A user who has switched compiling off does not need the advice as a warning.
        is_compiled = vendor.is_lazy() or has_compiled_parts(module)
        if choice.compilation.mode == "none" and not is_compiled:
            self.advice = LaunchAdvice(rank_zero_info, _HOW_TO_COMPILE)


_HOW_TO_COMPILE = (
    "Pass compile='regions' to the strategy, add lightning_gaudi.callbacks.Compile() to the "
    "Trainer's callbacks, or set LIGHTNING_GAUDI_COMPILE=regions."
)


def _why_no_region(root: Module) -> str:
    """Returns why compile='regions' finds nothing in a model, and what to do."""
    recurrent = {type(each).__name__ for each in root.modules() if isinstance(each, RNNBase)}
    left = f" (it leaves {' and '.join(sorted(recurrent))} alone)" if recurrent else ""
    return (
        "compile='regions' found no module of several operators that torch.compile can trace"
        f"{left}. Put layers that are called one after another into a module with a forward of its "
        "own (nn.Sequential, or a class): that is compiled."
    )


_FIRST, _LAST = 2, 3
"""The steps between which launches are counted; the first one sets up the optimizer's states."""


class LaunchAdvice:
    """Counts steps of the optimizer, and gives advice after a few of them.

    Args:
        tell: Is given the text.
        advice: What to do, as sentences.
    """

    def __init__(self, tell: Callable[[str], None], advice: str) -> None:
        self._tell = tell
        self._advice = advice
        self._num_steps = 0
        self._before: int | None = None

    def note_step(self) -> None:
        """Notes that a step has been taken."""
        self._num_steps += 1
        if self._num_steps == _FIRST:
            self._before = _num_launches()
        elif self._num_steps == _LAST:
            now = _num_launches()
            before, count = self._before, ""
            # A program may have reset the vendor's counter meanwhile.
            if before is not None and now is not None and now >= before:
                count = f": {now - before} a step"
            self._tell(
                f"This model trains in eager mode and nothing of it is compiled, so each operator "
                f"is a launch of the device{count}. {self._advice}"
            )


def _num_launches() -> int | None:
    metric = vendor.metric("launch")
    return None if metric is None else int(metric["TotalNumber"])


@contextmanager
def stepping_at_once(optimizer: Any, mixes_weights: bool = False) -> Iterator[None]:
    """Lets an optimizer step whole groups at once in this block, unless the user chose otherwise.

    By default torch's optimizers do so on CUDA and a few other devices that have kernels for lists
    of tensors. An HPU has them, too, but is not in torch's list (2.13, `utils/_foreach_utils.py`),
    so each weight would cost about a dozen launches.

    Args:
        optimizer: Any optimizer; only torch's own have the choice. Its groups are restored, since
            they are part of checkpoints.
        mixes_weights: Whether that holds for a group of DTensors and plain weights, too.
    """
    groups = [group for group in _groups(optimizer) if _may(group, mixes_weights)]
    for group in groups:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in groups:
            group["foreach"] = None


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    if type(optimizer).__module__.startswith("deepspeed."):
        # Around torch's, which steps flat shards; nothing is at once where they are on the host.
        is_on_card = not getattr(optimizer, "offload_optimizer", False)
        optimizer = getattr(optimizer, "optimizer", None) if is_on_card else None
    is_torchs = isinstance(optimizer, Optimizer) and type(optimizer).__module__.startswith(
        "torch.optim."
    )
    return optimizer.param_groups if is_torchs else []


def _may(group: dict[str, Any], mixes_weights: bool) -> bool:
    if group.get("foreach", False) is not None or group.get("fused") or group["differentiable"]:
        return False
    if any(isinstance(value, Tensor) for name, value in group.items() if name != "params"):
        return False
    # This runs for each weight in each step. A plain Parameter is judged as a Tensor by its type,
    # since its `data` would make a new tensor object each time.
    weights = group["params"]
    kinds = {Tensor if kind is Parameter else kind for kind in map(type, weights)}
    # ZeRO-3 fills its groups with one shard after the other, while it steps.
    return (len(kinds) <= 1 or mixes_weights) and all(
        weight.is_hpu and not weight.dtype.is_complex for weight in weights
    )
