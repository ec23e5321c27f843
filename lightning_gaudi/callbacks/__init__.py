"""Callbacks: what measures a run does not wait for the device; what ends it keeps its state."""

from .compile import Compile
from .exit_checkpoint import OnExitCheckpoint
from .graphs import GraphMonitor, GraphReport
from .history import Curve, MetricHistory
from .reliability import Reliability
from .throughput import ThroughputReport, TokenThroughput

__all__ = [
    "Compile",
    "Curve",
    "GraphMonitor",
    "GraphReport",
    "MetricHistory",
    "OnExitCheckpoint",
    "Reliability",
    "ThroughputReport",
    "TokenThroughput",
]
