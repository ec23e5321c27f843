"""The stand-in for Intel Gaudi's Python package on a simulated HPU.

It offers the vendor's public names with the vendor's semantics over the simulated device. The
folder above it is on `sys.path` only while the simulator is active, and never beside the real
package. A name works, or refuses and says why; `docs/reference/vendor-names.md` lists all of them.

Source: Intel Gaudi PyTorch bridge, release 1.24.1 (names, signatures, semantics). For older
releases see `lightning_gaudi/simulator/vendor_names`.
"""

from . import _modules
from ._missing import missing

_modules.install()
__getattr__ = missing(__name__)
