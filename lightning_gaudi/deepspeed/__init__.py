"""DeepSpeed on the HPU: what the strategies of the Trainer and of Fabric do alike.

`strategy` is that. `library` imports DeepSpeed and connects it. `config` reads the settings,
completes and checks them; `engine` makes the engine that trains or evaluates, and tells it when to
step; `checkpoint` saves and loads; `ops` builds what offloading to the CPU needs.
"""
