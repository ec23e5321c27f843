"""Checkpoints of DeepSpeed's: folders in which each rank has its shards, in versions."""
