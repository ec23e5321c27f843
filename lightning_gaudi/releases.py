"""Lists the releases of the Gaudi software, the torch of each, and what changed with one.

It imports nothing of ours, so that the plugin, its tools and the simulator share it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OLDEST = "1.20"
"""The first release with a torch that this package runs with."""
LAST_WITH_FIRST_GAUDI = (1, 21)


class Release(NamedTuple):
    """A release of the Gaudi software."""

    software: str
    """The vendor's name for it: "1.20", or "1.24.1"."""
    torch: str
    is_lazy: bool = False
    """Whether it runs in lazy mode if `PT_HPU_LAZY_MODE` is not set, as until 1.20."""

    @property
    def version(self) -> str:
        """The version in three numbers: "1.20.0"."""
        return ".".join([*self.software.split("."), "0"][:3])

    @property
    def key(self) -> str:
        """The major and the minor number: "1.20"."""
        return minor(self.software)

    @property
    def number(self) -> int:
        """100 times the major number plus the minor one, to compare."""
        major, below = numbers(self.software)[:2]
        return major * 100 + below


RELEASES = (
    Release("1.20", "2.6.0", is_lazy=True),
    Release("1.21", "2.6.0"),
    Release("1.22", "2.7.1"),
    Release("1.23", "2.9.0"),
    Release("1.24.0", "2.10.0"),
    Release("1.24.1", "2.11.0"),
)
"""All releases that are known, the oldest first; docs/how-to/on-a-gaudi.md lists them, too.

Source: Intel Gaudi documentation, "Support matrix"; the vendor's images of these releases.
"""


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with: (1, 23, 0) of "1.23.0-2eae87a"."""
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def minor(version: str) -> str:
    """Returns the major and the minor number: "1.23" of "1.23.0.695"."""
    return ".".join(str(number) for number in numbers(version)[:2])


def find_release(software: str) -> Release | None:
    """Returns the release of a version; an unknown patch counts as the patch before it."""
    found = [each for each in RELEASES if minor(each.software) == minor(software)]
    before = [each for each in found if numbers(each.software) <= numbers(software)[:3]]
    return next(iter([*reversed(before), *found]), None)
