"""Implements `lightning-gaudi audit`: what a few steps of a program make a card do, by line.

In the audited process `process.install` has everything noted (`call_sites`, `recording`,
`loaders`) and a `record` written; the command reads the records of all ranks (`merging`), judges
them (`findings`) and shows them (`text`, `page`, `plots`). See docs/how-to/audit.md.

Nothing here is imported unless the environment names this tool.
"""

__all__: list[str] = []
