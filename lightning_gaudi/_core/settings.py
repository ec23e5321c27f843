"""`Setting`: what one may say of a run in an argument, a callback or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Wording(NamedTuple):
    """How a setting is spoken of."""

    purpose: str
    """What it says, as "what to compile"."""
    forms: str
    """What may be passed: a sentence."""
    argument: str = ""
    """The argument of a strategy, as "compile="; empty where there is none."""
    callback: str = ""
    """The callback's class, if there is one."""


class Setting(Generic[Value]):
    """Reads values of one kind, wherever they are set, and says which of them holds.

    Args:
        kind: The class of the values: its fields are the names in a mapping. Made without
            arguments it is the default.
        variable: The variable of the environment.
        wording: For messages.
        read: Makes a value of what is neither a mapping nor of that class, such as text; returns
            None where it makes no sense.
    """

    def __init__(
        self,
        kind: type[Value],
        variable: str,
        wording: Wording,
        read: Callable[[Any], Value | None],
    ) -> None:
        self.kind = kind
        self.variable = variable
        self._wording = wording
        self._read = read

    def parse(self, value: Any, origin: str) -> Value | None:
        """Returns what a user wrote; None for nothing.

        Args:
            value: A value of the class, a mapping of its fields, or what `read` understands.
            origin: Where it was set, for messages.

        Raises:
            ValueError: It is none of these, or has a wrong value.
        """
        if value is None or isinstance(value, self.kind):
            return value
        try:
            if isinstance(value, Mapping):
                names = [*getattr(self.kind, "__dataclass_fields__", ())]
                for name in value:
                    check_name(name, names, f"Names are {', '.join(names)}.")
                return self.kind(**value)
            if (found := self._read(value)) is not None:
                return found
            raise ValueError(self._wording.forms)
        except ValueError as error:
            raise ValueError(
                f"{origin}: {value!r} does not say {self._wording.purpose}. {error}"
            ) from error

    def from_environment(self) -> Value | None:
        """Returns what the variable says, None if it is not set.

        Raises:
            ValueError: Its value is not known.
        """
        return self.parse(os.environ.get(self.variable) or None, self.variable)

    def choose(self, argument: Value | None, callback: Value | None) -> tuple[Value, str | None]:
        """Returns what holds, and who says so: the argument, else the callback, the environment.

        Raises:
            ValueError: The environment has a value that is not known.
        """
        if argument is not None:
            return argument, self._wording.argument
        if callback is not None:
            return callback, f"the callback {self._wording.callback}"
        found = self.from_environment()
        return (self.kind(), None) if found is None else (found, self.variable)


def check_name(name: Any, known: Sequence[str], advice: str) -> None:
    """Refuses a name that is none of those known.

    Args:
        name: As the user wrote it.
        known: Names that there are.
        advice: What to write instead.

    Raises:
        ValueError: It is none of them; the message names the one that was probably meant.
    """
    if name not in known:
        from .wording import nearest  # needed by messages of errors alone

        close = nearest(str(name), known)
        meant = f"Did you mean {close!r}? " if close else ""
        raise ValueError(f"There is no {name!r}. {meant}{advice}")
