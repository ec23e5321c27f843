"""Counts of what slows a training down: compilations, fallbacks, host syncs."""

from ...._missing import missing
from .exceptions import (
    InvalidMetricDumpFileFormat,
    InvalidMetricDumpTrigger,
    MetricNotFound,
    MetricNotFoundError,
)
from .metrics import Metric, metric_global, metric_localcontext, metrics_dump
from .saver import MetricDumpFormat, MetricDumpTrigger

__all__ = [
    "InvalidMetricDumpFileFormat",
    "InvalidMetricDumpTrigger",
    "Metric",
    "MetricDumpFormat",
    "MetricDumpTrigger",
    "MetricNotFound",
    "MetricNotFoundError",
    "metric_global",
    "metric_localcontext",
    "metrics_dump",
]
__getattr__ = missing(__name__)
