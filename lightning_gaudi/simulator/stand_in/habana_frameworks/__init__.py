"""The stand-in for Intel Gaudi's Python package on a simulated HPU.

It offers the vendor's public names with the vendor's semantics over the simulated device. The
folder above it is on `sys.path` only while the simulator is active, and never beside the real
package. What is missing says so; the simulator's README lists it.

Source: Intel Gaudi PyTorch bridge, release 1.19 (names, signatures, semantics).
"""

from ._missing import missing

__getattr__ = missing(__name__)
