"""Each rank's own files, and rank 0 that speaks."""

from __future__ import annotations

import os
import warnings
from typing import Any

from lightning.pytorch.profilers import Profiler
from typing_extensions import override


class RankFiles(Profiler):
    """A profiler whose files bear the rank among all nodes, and that survives a bad folder."""

    _rank: int

    @override
    def _prepare_filename(self, action_name: str | None = None, extension: str = ".txt") -> str:
        """Lightning's file names, but always with the rank, and that among all nodes."""
        parts = [self._stage or "", self.filename or "", f"rank{self._rank}", action_name or ""]
        return "-".join(part for part in parts if part) + extension

    def _path(self, extension: str) -> str:
        """Returns the path of a file of this rank, or its URL."""
        name = self._prepare_filename(extension=extension)
        return os.path.join(str(self.dirpath or "."), name)  # noqa: PTH118 (may be a URL)

    @override
    def _prepare_streams(self) -> None:
        try:
            super()._prepare_streams()
        except OSError as error:
            warnings.warn(
                f"{type(self).__name__} on rank {self._rank} cannot write its summary to "
                f"dirpath={str(self.dirpath)!r} and shows it instead: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._write_stream = self._rank_zero_info

    @override
    def _rank_zero_info(self, *args: Any, **kwargs: Any) -> None:
        if self._rank == 0:
            self._local_rank = 0
            super()._rank_zero_info(*args, **kwargs)
