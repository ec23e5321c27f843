"""The errors of the metrics."""

from ...._missing import missing


class MetricNotFound(Exception):  # noqa: N818 (the vendor's name)
    """There is no metric of that name."""


class InvalidMetricDumpFileFormat(Exception):  # noqa: N818 (the vendor's name)
    """There is no file format of that name."""


class InvalidMetricDumpTrigger(Exception):  # noqa: N818 (the vendor's name)
    """There is no occasion of that name."""


__getattr__ = missing(__name__)
