"""Puts a file in its place whole: a reader sees what was there before, or all that is new."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["put_whole"]


@contextmanager
def put_whole(target: Path) -> Iterator[IO[bytes]]:
    """Yields a new file beside `target`, which takes its place when the block ends.

    After an error nothing is left beside `target`, and what it had stays. A symbolic link is
    replaced, and not followed. For checkpoints, which have to survive a loss of power, see
    `checkpoint.atomic`.

    Raises:
        OSError: The file cannot be written.
    """
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    with draft.open("xb") as file:
        try:
            yield file
            file.flush()  # a full disk may be met only here
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
