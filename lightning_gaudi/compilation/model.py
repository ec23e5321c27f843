"""A model of a strategy, compiled as the choice for the run says, and given back as it was."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Module

from lightning_gaudi._core import vendor

from .double_backward import mentions_double_backward
from .graph_breaks import GraphBreakReporter
from .method import CompiledMethod
from .regions import find_parts, find_regions, has_blocks, has_compiled_parts
from .settings import Choice, Compilation

_has_told_lazy = False


def is_wanted(choice: Choice, module: Module) -> bool:
    """Returns whether anything of the module is to be compiled.

    Not in lazy mode, where the vendor's bridge compiles; not if its user has compiled it; not by
    default if it takes gradients of gradients, which torch's compiler cannot.
    """
    global _has_told_lazy
    compilation, origin = choice
    if compilation.mode == "none":
        return False
    if vendor.is_lazy():
        if origin is not None and not _has_told_lazy:
            _has_told_lazy = True
            rank_zero_warn(
                f"{origin} asks for {compilation.mode!r} to be compiled by torch, but in lazy mode "
                "(PT_HPU_LAZY_MODE=1) the vendor's bridge compiles all by itself: torch compiles "
                "nothing. Leave it out, or set PT_HPU_LAZY_MODE=0."
            )
        return False
    if has_compiled_parts(module):
        return False
    if origin is None and (place := mentions_double_backward(module)) is not None:
        rank_zero_warn(
            f"Nothing is compiled: {place} uses create_graph, and torch.compile cannot "
            "differentiate twice. Compile what is differentiated once by regions=[...], or pass "
            "compile='none' to say so."
        )
        return False
    return True


class CompiledRegions:
    """The regions of a model, compiled in place until `remove`.

    Args:
        root: The model.
        compilation: How.
        with_root: See `find_regions`.
    """

    def __init__(self, root: Module, compilation: Compilation, *, with_root: bool) -> None:
        regions = find_regions(root, compilation.regions, with_root=with_root)
        self.reporter = GraphBreakReporter(raises=compilation.on_give_up == "error")
        settings = arguments(compilation)
        self.modules = regions
        """The regions."""
        self._forwards: dict[int, CompiledMethod] = {}
        for region in regions:
            # From the inside out: each has those of the modules in it.
            for module in [*reversed(find_parts(region)), region]:
                inner = [
                    self._forwards[id(each)]
                    for each in module.modules()
                    if id(each) in self._forwards
                ]
                is_model = module is region and has_blocks(region)
                forward = CompiledMethod(
                    module, settings, self.reporter, inner, keeps_inner=is_model
                )
                self._forwards[id(module)] = forward
        for forward in self._forwards.values():
            forward.install()

    def remove(self) -> None:
        """Leaves the model as it was."""
        for forward in self._forwards.values():
            forward.remove()
        self.reporter.close()


class CompiledWhole:
    """A module compiled as one, until `remove`; see `CompiledRegions`."""

    def __init__(self, module: Module, compilation: Compilation) -> None:
        self.reporter = GraphBreakReporter(raises=compilation.on_give_up == "error")
        self._forward = CompiledMethod(module, arguments(compilation), self.reporter)
        self._forward.install()

    def remove(self) -> None:
        """Leaves the module as it was."""
        self._forward.remove()
        self.reporter.close()


def arguments(compilation: Compilation) -> dict[str, Any]:
    """Returns what `torch.compile` is called with.

    Raises:
        ValueError: The vendor's compiler has no such option.
    """
    check_options(compilation.options)
    found: dict[str, Any] = {
        "backend": vendor.COMPILE_BACKEND,
        "dynamic": compilation.dynamic,
        "fullgraph": compilation.on_give_up == "error",
    }
    if compilation.options:
        found["options"] = dict(compilation.options)
    _set_up_compiler(compilation.recompile_limit)
    return found


def check_options(options: Mapping[str, Any] | None) -> None:
    """Raises for an option that the installed vendor's compiler does not have.

    Raises:
        ValueError: There is one.
    """
    if not options:
        return
    known = sorted(vendor.compiler_config().get_config_copy())
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known) or known
            raise ValueError(
                f"options={dict(options)!r}: the vendor's compiler has no option {name!r}. Did you "
                f"mean {', '.join(map(repr, close))}?"
            )


def _set_up_compiler(limit: int) -> None:
    """Sets what torch's compiler has for the process.

    Args:
        limit: For how many shapes a function is compiled, unless the user has more.
    """
    from torch._dynamo import config

    # cache_size_limit before torch 2.7, and an alias since.
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, name, max(limit, getattr(config, name)))
    # DDP's own splitting of graphs, one a bucket, is of no use here: reductions are not in them.
    config.optimize_ddp = False
    # Hooks that are put on, or taken away, after a module has been compiled.
    config.skip_nnmodule_hook_guards = False
