"""`HPUProfiler`, which measures what steps cost the host, and traces a few of them."""

from .hpu import HPUProfiler

__all__ = ["HPUProfiler"]
