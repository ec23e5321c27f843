"""For every row of the rules the smallest program that meets it, by the row's key."""

from lightning_gaudi.tools.verify.programs.operators import NOT_ON_CPU, PROGRAMS, Program

__all__ = ["NOT_ON_CPU", "PROGRAMS", "Program"]
