"""Reports graphs that were compiled anew for other shapes, on devices that tell of them."""

from __future__ import annotations

from . import vendor

MAX_CAUSES = 32
"""How many causes a report keeps: the first, which show what varies."""


class Recompilations:
    """Returns the recompilations since it was last asked.

    Asking costs no more where many graphs were compiled before, but more than a count does: ask
    when the number of compilations has grown.
    """

    def __init__(self) -> None:
        self._num_seen: int | None = None
        self.skip()

    def skip(self) -> None:
        """Leaves out all recompilations so far."""
        stats = vendor.metric("recompilation")
        self._num_seen = None if stats is None else int(stats["TotalNumber"])

    def new(self) -> list[str]:
        """Returns what differed, such as "input 0: [8, 113] was [8, 128]", for each new graph.

        The list is empty on devices that do not tell, such as every Gaudi.
        """
        stats = vendor.metric("recompilation")
        if stats is None or self._num_seen is None:
            return []
        num_new = int(stats["TotalNumber"]) - self._num_seen
        self._num_seen += num_new
        return list(stats["Causes"][-num_new:]) if num_new > 0 else []

    @property
    def is_told(self) -> bool:
        """Whether the device tells of recompilations at all."""
        return self._num_seen is not None
