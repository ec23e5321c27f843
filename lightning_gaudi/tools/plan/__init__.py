"""Measures what a program will take of a card before there is a card."""

from typing import TYPE_CHECKING

from lightning_gaudi._core import mirror

if TYPE_CHECKING:
    from .cards import CARDS as CARDS
    from .plan import PlanError as PlanError, Planned as Planned, plan_module as plan_module
    from .request import Request as Request
else:
    # Lazy, since a program that rehearses imports this package in the middle of `import torch`.
    __getattr__, __dir__, __all__ = mirror.lazy_names(
        __name__,
        {
            "CARDS": ".cards",
            "Request": ".request",
            "PlanError": ".plan",
            "Planned": ".plan",
            "plan_module": ".plan",
        },
    )
