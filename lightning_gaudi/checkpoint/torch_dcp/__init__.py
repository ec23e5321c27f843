"""Checkpoints in shards: folders to which each rank has written its part (torch's DCP).

`layout` knows the files. `save` and `load` write and read a folder, `sharded_state_dict` takes
states out of models and optimizers in shards and puts them back, from a folder or from whole states
(`memory_reader`), after `compatibility` has found that they fit. `strategy` is what the strategies
of the Trainer and of Fabric do alike with them.
"""
