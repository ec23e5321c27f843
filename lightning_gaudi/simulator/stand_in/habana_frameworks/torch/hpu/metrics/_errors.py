"""Defines the errors of the metrics, under all the names that they have had."""

from __future__ import annotations


class MetricNotFoundError(Exception):
    """There is no metric of that name."""


MetricNotFound = MetricNotFoundError


class _UnknownValueError(KeyError):
    """A KeyError, as these are since 1.24, but with a text that is shown without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidMetricDumpFileFormat(_UnknownValueError):  # noqa: N818 (the vendor's name)
    """There is no file format of that name."""


class InvalidMetricDumpTrigger(_UnknownValueError):  # noqa: N818 (the vendor's name)
    """There is no occasion of that name."""
