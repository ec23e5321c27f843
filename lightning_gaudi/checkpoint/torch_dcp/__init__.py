"""Checkpoints in shards: folders to which each rank has written its part (torch's DCP)."""
