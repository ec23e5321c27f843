"""Callbacks that measure a run without disturbing it: none of them waits for the device."""

from .compile import Compile
from .graphs import GraphMonitor, GraphReport
from .throughput import ThroughputReport, TokenThroughput

__all__ = ["Compile", "GraphMonitor", "GraphReport", "ThroughputReport", "TokenThroughput"]
