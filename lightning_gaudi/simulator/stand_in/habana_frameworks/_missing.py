"""What the simulated HPU does not offer, said in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

README = "lightning_gaudi/simulator/README.md"


class NotSimulatedError(NotImplementedError, AttributeError):
    """A name of the vendor's package that the stand-in lacks.

    It is an AttributeError too, so that `hasattr` keeps detecting features.
    """


def not_simulated(what: str, instead: str = "") -> NotSimulatedError:
    """The error for something that a Gaudi may have and the simulated HPU has not.

    Args:
        what: Its dotted name, or the call with its argument.
        instead: What to use in its place, as a sentence.
    """
    advice = f" {instead}" if instead else ""
    return NotSimulatedError(
        f"{what} is not available on the simulated HPU.{advice} "
        f"What is simulated, and what is not, is listed in {README}."
    )


def refusing(what: str, why: str) -> Callable[..., NoReturn]:
    """Build a function that exists, so that it can be imported, and refuses when it is called.

    Args:
        what: Its dotted name below `habana_frameworks.torch`.
        why: Why it is not simulated, and what to use in its place, as sentences.
    """

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise not_simulated(what, why)

    refuse.__name__ = refuse.__qualname__ = what.rpartition(".")[2]
    refuse.__doc__ = f"Not simulated. {why}"
    return refuse


def missing(module: str) -> Callable[[str], NoReturn]:
    """Build a module's `__getattr__`: a public name it lacks raises, saying what and why.

    Args:
        module: The module's `__name__`.
    """

    def __getattr__(name: str) -> NoReturn:  # noqa: N807 (assigned to a module)
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise not_simulated(f"{module}.{name}")

    return __getattr__
