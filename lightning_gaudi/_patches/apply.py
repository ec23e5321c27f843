"""The only functions that change other packages, each for an entry of the register.

A patch that is applied after an import is applied as a whole or not at all. One that fails is off,
and a warning names it; the others stay on. A patch that our own code applies raises instead, since
the run would go wrong without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from .register import BY_NAME, Patch

_MARK = "_lightning_gaudi_patch"
_ABSENT = object()

_broken: set[str] = set()
"""The patches that have failed, of which a warning told."""

_undo: list[Callable[[], None]] | None = None
"""Functions that undo the patch that is being applied after an import; None while none is."""


class MissingNameError(AttributeError):
    """A name that a patch changes or relies on is gone; the message says what to install."""


def apply(patch: Patch, module: ModuleType, family: Any) -> None:
    """Applies a patch to a module that was just imported; applying it twice is harmless.

    Args:
        patch: A patch with a trigger.
        module: The module that the trigger names.
        family: The `mirror.Family` of the module.
    """
    global _undo
    if patch.name in _broken:
        return
    below, _, function = patch.apply.partition(":")
    steps: list[Callable[[], None]] = []
    _undo = steps
    try:
        home = below if "." in below else f"{__package__}.{below}"
        getattr(importlib.import_module(home), function)(module, family)
    # An import of Lightning must not fail because of us, whatever a new release of it has changed.
    except Exception as error:
        for take_back in reversed(steps):
            take_back()
        _broken.add(patch.name)
        _warn(patch, error)
    finally:
        _undo = None


def _warn(patch: Patch, error: Exception) -> None:
    reason = str(error) if isinstance(error, MissingNameError) else _explain(patch, error)
    warnings.warn(
        f"lightning_gaudi's patch {patch.name!r} is off: {patch.without}. {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def _explain(patch: Patch, error: Exception) -> str:
    return f"It failed with {type(error).__name__}: {error}. {_advice(patch)}"


def _advice(patch: Patch) -> str:
    return (
        f"It was checked with {patch.library} {patch.checked}, and {_version(patch.library)} is "
        f"installed. Install one of those, or upgrade lightning-gaudi."
    )


def _version(library: str) -> str:
    names = {"lightning": ("lightning", "pytorch-lightning", "lightning-fabric")}
    for name in names.get(library, (library,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "an unknown version"


def require_applied(name: str) -> None:
    """Raises if a patch that should have been applied after an import has failed.

    Raises:
        RuntimeError: It has failed; a warning has told why.
    """
    if name in _broken:
        raise RuntimeError(f"{BY_NAME[name].without}. {_advice(BY_NAME[name])}")


def require(name: str, owner: Any, *attributes: str) -> None:
    """Raises unless an object has the attributes that a patch relies on.

    Args:
        name: The patch's.
        owner: A module, class or object.
        attributes: Of `owner`.

    Raises:
        MissingNameError: One is not.
    """
    if missing := [each for each in attributes if not hasattr(owner, each)]:
        raise_missing(name, owner, missing)


def raise_missing(name: str, owner: Any, missing: list[str]) -> None:
    """Raises the error that names which a patch relies on are gone.

    Raises:
        MissingNameError: Always.
    """
    place = getattr(owner, "__name__", None) or type(owner).__name__
    advice = _advice(BY_NAME[name])
    raise MissingNameError(f"{place} has no {', '.join(missing)} any more. {advice}")


def replace(name: str, owner: Any, attribute: str, value: Any) -> None:
    """Replaces an attribute of a module, class or object.

    A replacement of ours in a module or a class stays.

    Args:
        name: The patch's.
        owner: What is changed.
        attribute: Its attribute, which must be there.
        value: What takes the place.

    Raises:
        MissingNameError: There is no such attribute.
    """
    _check(name)
    require(name, owner, attribute)
    # A patch may be applied again after a reload, and a wrapper must not wrap itself.
    if isinstance(owner, (ModuleType, type)) and is_ours(owner, attribute):
        return
    # By `vars`, since `getattr` would find an inherited attribute, which must not be set on `owner`
    # later.
    before = vars(owner).get(attribute, _ABSENT)
    _note_undo(lambda: _restore(owner, attribute, before))
    setattr(owner, attribute, _marked(value, name))


def wrap(name: str, owner: Any, attribute: str) -> Callable[[Callable[..., Any]], None]:
    """Replaces a function or method by the decorated one, which gets the original first.

    Args:
        name: The patch's.
        owner: The module or class that has the function.
        attribute: Its name there.

    Raises:
        MissingNameError: There is no such function.
    """
    require(name, owner, attribute)
    original = getattr(owner, attribute)
    is_static = isinstance(vars(owner).get(attribute), staticmethod)

    def decorate(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        replace(name, owner, attribute, staticmethod(wrapped) if is_static else wrapped)

    return decorate


@contextmanager
def replaced(name: str, owner: Any, **values: Any) -> Iterator[None]:
    """Replaces attributes during a block.

    Args:
        name: The patch's.
        owner: What is changed.
        values: What takes the place of its attributes, all of which must be there.

    Raises:
        MissingNameError: One is not there.
    """
    _check(name)
    require(name, owner, *values)
    before = {attribute: vars(owner).get(attribute, _ABSENT) for attribute in values}
    for attribute, value in values.items():
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for attribute, value in before.items():
            _restore(owner, attribute, value)


def find_when_asked(name: str, module: ModuleType, homes: Mapping[str, str]) -> None:
    """Makes a module import names from ours when somebody asks for them, as in PEP 562.

    Args:
        name: The patch's.
        module: The module; its own objects of these names are removed.
        homes: Each name, and the module of ours that has it.
    """
    _check(name)
    for attribute in homes:
        before = vars(module).get(attribute, _ABSENT)
        if before is not _ABSENT:
            _note_undo(functools.partial(setattr, module, attribute, before))
            delattr(module, attribute)
    original = vars(module).get("__getattr__")

    def find(attribute: str) -> Any:
        if attribute in homes:
            return getattr(importlib.import_module(homes[attribute]), attribute)
        if original is not None:
            return original(attribute)
        raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")

    before = vars(module).get("__getattr__", _ABSENT)
    _note_undo(functools.partial(_restore, module, "__getattr__", before))
    module.__getattr__ = find  # type: ignore[method-assign]


def add(name: str, owner: Any, attribute: str, value: Any) -> None:
    """Adds an attribute to a module, class or object that lacks it."""
    _check(name)
    if attribute not in vars(owner):
        _note_undo(lambda: delattr(owner, attribute))
        setattr(owner, attribute, value)


def enter(name: str, table: dict[str, Any], key: str, value: Any) -> None:
    """Sets an entry of another package's dict, such as a registry of Lightning's."""
    _check(name)
    before = dict.get(table, key, _ABSENT)  # a registry's own `get` makes an instance
    _note_undo(lambda: _restore_entry(table, key, before))
    table[key] = value


def is_ours(owner: Any, attribute: str) -> bool:
    """Returns whether an attribute was set by `replace`."""
    return hasattr(getattr(owner, attribute), _MARK)


def _note_undo(take_back: Callable[[], None]) -> None:
    if _undo is not None:
        _undo.append(take_back)


def _check(name: str) -> None:
    assert name in BY_NAME, f"the register has no patch {name!r}"


def _marked(value: Any, name: str) -> Any:
    function = getattr(value, "__func__", value)
    if callable(function) and hasattr(function, "__dict__") and not isinstance(function, type):
        function.__dict__[_MARK] = name
    return value


def _restore(owner: Any, attribute: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, before)


def _restore_entry(table: dict[str, Any], key: str, before: Any) -> None:
    if before is _ABSENT:
        del table[key]
    else:
        table[key] = before


_Object = TypeVar("_Object")


def swap_class(instance: _Object, base: type, ours: type) -> _Object:
    """Changes the class of `instance` to `ours`; its attributes and references to it stay.

    A user's subclass of `base` becomes a class with the same overrides, whose `super()` calls reach
    `ours` in the place of `base`.

    Args:
        instance: An instance of `base` or of a subclass of it.
        base: A class of Lightning's.
        ours: Our subclass of it.

    Returns:
        `instance`.
    """
    kind: Any = type(instance)
    if not issubclass(kind, ours):
        instance.__class__ = ours if kind is base else _joined(kind, ours)
    return instance


@cache
def _joined(theirs: type, ours: type) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        # `ddp_spawn` pickles the strategy, and a class that is made here has no importable name.
        state = self.__getstate__() if hasattr(self, "__getstate__") else vars(self)
        return _restore_joined, (theirs, ours), state

    # Ray's strategies override the device by "hpu" without an index. A process has one card, whose
    # index ours add.
    device = {"root_device": ours.root_device} if hasattr(ours, "root_device") else {}
    return type(
        f"HPU{theirs.__name__}",
        (theirs, ours),
        {
            **device,
            "__doc__": theirs.__doc__,
            "__module__": theirs.__module__,
            "__reduce_ex__": reduce_ex,
        },
    )


def _restore_joined(theirs: type, ours: type) -> Any:
    return object.__new__(_joined(theirs, ours))
