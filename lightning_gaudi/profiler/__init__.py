"""`HPUProfiler`: what a step costs the host, and a trace of a few steps."""

from .hpu import HPUProfiler, extend_trainer_setup

__all__ = ["HPUProfiler", "extend_trainer_setup"]
