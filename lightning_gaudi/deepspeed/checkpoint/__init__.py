"""DeepSpeed's checkpoints: folders with versions, in which each rank has its shards."""
