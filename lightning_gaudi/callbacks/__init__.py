"""Callbacks that measure a run without waiting for the device, or save its state as it ends."""

from lightning_gaudi._core.flops import FlopCounter

from .alarm import CompilationAlarm, LateCompilationError
from .exit_checkpoint import OnExitCheckpoint
from .graphs import GraphMonitor, GraphReport
from .history import Curve, MetricHistory
from .memory import MemoryMonitor
from .settings import Compile, Reliability
from .throughput import ThroughputReport, TokenThroughput

__all__ = [
    "CompilationAlarm",
    "Compile",
    "Curve",
    "FlopCounter",
    "GraphMonitor",
    "GraphReport",
    "LateCompilationError",
    "MemoryMonitor",
    "MetricHistory",
    "OnExitCheckpoint",
    "Reliability",
    "ThroughputReport",
    "TokenThroughput",
]
