"""Finds the parts of a model to compile: its repeated blocks, and the largest parts beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from torch.jit import ScriptModule
from torch.nn import Module, ModuleDict, ModuleList, RNNBase, Sequential

_CONTAINERS = (ModuleList, ModuleDict, Sequential)
_DECLARED = "compile_regions"
_METHODS = "compile_methods"
_WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""The attributes in which FSDP and activation checkpointing hold the module that they wrap."""


def find_regions(
    root: Module, names: Sequence[str] | None = None, *, with_root: bool = True
) -> list[Module]:
    """Returns the modules to compile, none of which is in another.

    Args:
        root: A model.
        names: Names of the classes of its blocks; None finds them.
        with_root: Whether the whole model may be a region if it has no blocks; not if the user
            calls other methods than its forward.

    Returns:
        The outermost blocks: at least two members of a ModuleList or Sequential of one class, or a
        derived one, that are more than single operators. Then the largest modules with parameters
        and without a block in them. Modules that the compiler cannot trace are left out.

    Raises:
        ValueError: No module is of a class in `names`.
    """
    blocks = _named(root, names) if names is not None else _repeated(root)
    chosen = {id(block) for block in blocks}
    regions: dict[int, Module] = {}
    for part in _parts(root, chosen, with_root=with_root):
        regions.setdefault(id(part), part)
    return [*regions.values()]


def declared_regions(root: Module) -> list[str]:
    """Returns the names of classes that the model's modules declare in `compile_regions`.

    Raises:
        ValueError: One is no list of names.
    """
    names: dict[str, None] = {}
    for module in root.modules():
        try:
            declared = getattr(module, _DECLARED, ())
        # A module's own `__getattr__` may raise anything for an unknown name.
        except Exception:
            continue
        if not isinstance(declared, list | tuple) or not all(
            isinstance(name, str) for name in declared
        ):
            raise ValueError(
                f"{type(module).__name__}.{_DECLARED} is {declared!r}, and must be a list of names "
                "of classes."
            )
        names.update(dict.fromkeys(declared))
    return [*names]


def declared_methods(root: Module, regions: Sequence[Module]) -> list[tuple[Module, str]]:
    """Returns the modules outside of regions that declare `compile_methods`, and each method.

    Raises:
        ValueError: A module declares something else than names of its methods.
    """
    inside = {id(each) for region in regions for each in region.modules()}
    found = []
    for module in root.modules():
        # Of the class, since a module's own `__getattr__` may raise anything.
        names = () if id(module) in inside else getattr(type(module), _METHODS, ())
        if isinstance(names, str) or not all(
            isinstance(name, str) and callable(getattr(type(module), name, None)) for name in names
        ):
            raise ValueError(
                f"{type(module).__name__}.{_METHODS} is {names!r}, and must be a list of names of "
                "its methods."
            )
        found += [(module, name) for name in names]
    return found


def find_parts(region: Module) -> list[Module]:
    """Returns the modules in a region that could be regions themselves, the outer ones first."""
    inner = [*region.modules()][1:]
    return [each for each in inner if _is_traceable(each) and _is_worth_it(each)]


def has_blocks(region: Module) -> bool:
    """Returns whether a region has repeated blocks, and so is a whole model."""
    return bool(_repeated(region))


def has_compiled_parts(root: Module) -> bool:
    """Returns whether the user has compiled the model or a part of it."""
    from torch._dynamo import OptimizedModule

    return getattr(root, "_compiler_ctx", None) is not None or any(
        isinstance(module, OptimizedModule) or module._compiled_call_impl is not None
        for module in root.modules()
    )


def unwrapped(module: Module) -> Module:
    """Returns the module in wrappers of FSDP and of activation checkpointing."""
    for name in _WRAPPED:
        # The members of a ScriptModule are not a dict, and have no `get`.
        if name in module._modules and (inner := module._modules[name]) is not None:
            return unwrapped(inner)
    return module


def _named(root: Module, names: Sequence[str]) -> list[Module]:
    found = []
    missing = dict.fromkeys(names)
    for module in root.modules():
        # fully_shard gives a module a new class, which is derived from its own.
        hits = {kind.__name__ for kind in type(module).__mro__} & set(names)
        if hits:
            found.append(unwrapped(module))
        for name in hits:
            missing.pop(name, None)
    if missing:
        has = sorted({type(module).__name__ for module in root.modules() if _is_block(module)})
        raise ValueError(
            f"regions={list(names)}: the model has no {', '.join(map(repr, missing))}. It has "
            f"{', '.join(has) or 'none that holds others'}."
        )
    return found


def _repeated(root: Module) -> list[Module]:
    found = []
    for module in root.modules():
        if isinstance(module, ModuleList | Sequential):
            # A class may override iteration, and a member may be None.
            inner = [unwrapped(each) for each in module._modules.values() if each is not None]
            members = [member for member in inner if _is_block(member)]
            found += [one for one in members if sum(_are_alike(one, each) for each in members) > 1]
    return found


def _are_alike(one: Module, other: Module) -> bool:
    """Returns whether one's class is or extends the other's, such as that of a last block."""
    return isinstance(one, type(other)) or isinstance(other, type(one))


def _is_block(module: Module) -> bool:
    """Returns whether a module is more than one operator, and not a mere container."""
    if isinstance(module, _CONTAINERS) and type(module).forward in {
        kind.forward for kind in _CONTAINERS
    }:
        return False
    return bool(module._modules) or not _is_of_torch(module)


def _is_of_torch(module: Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _parts(module: Module, blocks: set[int], *, with_root: bool) -> Iterator[Module]:
    inner = unwrapped(module)
    is_traceable = _is_traceable(inner)
    if id(inner) in blocks and is_traceable:
        yield inner
        return
    has_blocks = any(id(each) in blocks for each in inner.modules())
    if with_root and is_traceable and not has_blocks and _is_worth_it(inner):
        yield inner
        return
    for child in inner.children():
        yield from _parts(child, blocks, with_root=True)


def _is_worth_it(module: Module) -> bool:
    """Returns whether a module is called, has weights, and is more than an operator or two."""
    is_called = type(module).forward not in {Module.forward, ModuleList.forward, ModuleDict.forward}
    has_weights = any(True for _ in module.parameters())
    return is_called and has_weights and bool(module._modules or not _is_of_torch(module))


def _is_traceable(module: Module) -> bool:
    """Returns whether the compiler can trace all of a module.

    It skips recurrent modules and TorchScript, and metrics are made to be read by the host.
    """
    metric = getattr(sys.modules.get("torchmetrics"), "Metric", ())
    kinds = (RNNBase, ScriptModule, *((metric,) if metric else ()))
    return not any(isinstance(each, kinds) or is_wrapper(each) for each in module.modules())


def is_wrapper(module: Module) -> bool:
    """Returns whether a module's hooks gather and release weights, which no graph may contain."""
    return "_fsdp_wrapped_module" in module._modules
