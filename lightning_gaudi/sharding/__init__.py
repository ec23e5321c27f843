"""Models in shards: what the strategies that have them do alike."""
