"""Which process drives which card, and how ranks are started, connected and ended.

`strategy` holds what the strategies of the Trainer and of Fabric do alike. `devices` reads which
cards are meant and binds each process to its own. `cluster` finds out who has started how many
processes, `launchers` starts them, and `process_group` connects them. `ddp` averages gradients;
`fsdp` and `device_mesh` check how a model is sharded. The collectives of connected ranks are in
`_core.collectives`.
"""
