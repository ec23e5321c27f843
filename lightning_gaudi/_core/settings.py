"""`Setting`, which reads a value from an argument, a callback or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Wording(NamedTuple):
    """The words for a setting in messages."""

    purpose: str
    """What it determines, such as "what to compile"."""
    forms: str
    """A sentence on the values that may be passed."""
    argument: str = ""
    """The argument of a strategy, such as "compile="; empty if there is none."""
    callback: str = ""
    """The callback's class, if there is one."""


class Setting(Generic[Value]):
    """Reads values of one kind wherever they are set, and chooses the one that counts.

    Args:
        kind: The class of the values. Its fields are the names in a mapping, and an instance
            without arguments is the default.
        variable: The variable of the environment.
        wording: For messages.
        read: Converts other values, such as text; returns None if it cannot.
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
        """Converts what a user wrote; returns None for None.

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
        """Returns the value of the environment's variable; None if it is not set.

        Raises:
            ValueError: Its value is not known.
        """
        # An empty variable counts as not set.
        return self.parse(os.environ.get(self.variable) or None, self.variable)

    def choose(self, argument: Value | None, callback: Value | None) -> tuple[Value, str | None]:
        """Returns the value that counts and its origin: argument, callback, or environment.

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
        from .wording import did_you_mean  # needed by messages of errors alone

        raise ValueError(f"There is no {name!r}.{did_you_mean(str(name), known)} {advice}")
