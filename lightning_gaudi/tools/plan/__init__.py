"""What a program will take of a card, measured before there is one."""

from lightning_gaudi._core.rehearsals import is_rehearsal

__all__ = ["is_rehearsal"]
