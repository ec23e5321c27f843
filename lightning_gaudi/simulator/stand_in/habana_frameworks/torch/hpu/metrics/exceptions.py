"""Offers the errors of the metrics, under this release's names."""

from ...._missing import missing
from ._errors import (
    InvalidMetricDumpFileFormat,
    InvalidMetricDumpTrigger,
    MetricNotFound,
    MetricNotFoundError,
)

__all__ = [
    "InvalidMetricDumpFileFormat",
    "InvalidMetricDumpTrigger",
    "MetricNotFound",
    "MetricNotFoundError",
]
__getattr__ = missing(__name__)
