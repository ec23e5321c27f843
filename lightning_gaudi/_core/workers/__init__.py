"""How a DataLoader's workers start where the process holds a card: from one that holds none.

`start` starts them, from the fork server that `server` runs in; `pickling` and `program_state` give
them what the program has, and `shared_memory` its tensors.
"""
