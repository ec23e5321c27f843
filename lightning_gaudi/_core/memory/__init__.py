"""Tells what a card's memory is used for.

`owners` finds tensors by category, `tags` holds those that their owners declare, and `report` puts
it into words.
"""
