"""Has the version of the package, which is that of the release that stands in."""

from .._missing import missing
from .._release import release

__version__ = release().version
version = __version__

__getattr__ = missing(__name__)
