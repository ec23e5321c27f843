"""Callbacks that measure a run without disturbing it: none of them waits for the device."""

from .graphs import GraphMonitor, GraphReport
from .throughput import ThroughputReport, TokenThroughput

__all__ = ["GraphMonitor", "GraphReport", "ThroughputReport", "TokenThroughput"]
