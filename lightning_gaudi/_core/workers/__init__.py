"""Starts a DataLoader's workers from a process without a card, if this one holds a card.

`start` starts them from a fork server, in which `server` runs. `pickling` and `program_state` hand
over what the program has defined and changed, and `shared_memory` its tensors.
"""
