"""DeepSpeed on the HPU, for the strategies of the Trainer and of Fabric.

`strategy` holds what both do alike. `library` imports DeepSpeed and connects it. `config` reads,
completes and checks the settings. `engine` makes the engine that trains or evaluates, and tells it
when to step. `checkpoint` saves and loads, and `ops` builds what offloading to the CPU needs.
"""
