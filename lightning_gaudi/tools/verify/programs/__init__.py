"""The smallest program that meets each rule, by the key of the rule's row."""

from lightning_gaudi.tools.verify.programs.operators import NOT_ON_CPU, PROGRAMS, Program

__all__ = ["NOT_ON_CPU", "PROGRAMS", "Program"]
