"""`HPUProfiler`: what a step costs the host, and a trace of a few steps."""

from .hpu import HPUProfiler

__all__ = ["HPUProfiler"]
