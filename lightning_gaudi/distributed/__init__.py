"""Which process drives which card, and how ranks are started, connected and ended.

`strategy` has what the strategies of the Trainer and of Fabric do alike. `devices` says which cards
are meant and binds each process to its own, `cluster` who has started how many processes,
`launchers` starts them, `process_group` connects them. `ddp` averages their gradients, `fsdp` and
`device_mesh` check what puts a model into shards. How connected ranks speak is in
`_core.collectives`.
"""
