"""DeepSpeed on the HPU: what the strategies of the Trainer and of Fabric do alike.

`library` imports DeepSpeed and connects it, `config` reads and completes its settings, `presets`
holds published ones, and `engine` makes the engine that trains or evaluates.
"""
