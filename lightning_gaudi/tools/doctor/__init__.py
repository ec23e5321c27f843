"""Finds what keeps a Gaudi from being used, and says what to do about it.

`diagnose` runs all checks on this machine, `hosts.diagnose_hosts` on all machines of a launcher's.
A check reads the outside through one object, `Machine`, and yields findings, each with its fix.
Nothing is changed but for files that the checks of folders write and remove, and no card is
acquired.
"""

from lightning_gaudi.tools.doctor.diagnosis import Options, diagnose
from lightning_gaudi.tools.doctor.findings import Finding, Level, Report
from lightning_gaudi.tools.doctor.machine import Machine

__all__ = ["Finding", "Level", "Machine", "Options", "Report", "diagnose"]
