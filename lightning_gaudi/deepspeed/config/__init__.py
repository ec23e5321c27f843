"""Reads DeepSpeed's settings, and checks whether they can be honoured."""
