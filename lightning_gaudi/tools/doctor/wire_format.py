"""Sends reports over the standard output of a launcher, which mixes the lines of many processes.

A report is cut into lines that are short enough to be written in one piece, each with its sender
and its place. What a launcher puts before a line (mpirun --tag-output, srun --label) does no harm.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from lightning_gaudi.untrusted import parse_json

# A pipe takes up to 4096 bytes (PIPE_BUF) in one piece, with what stands before the part.
_SIZE = 900
_MARK = "@lightning-gaudi-doctor"
_LINE = re.compile(
    rf"{_MARK} (\w+) ([\w.-]{{1,300}}) ([0-9]{{1,5}})/([0-9]{{1,5}}) (\S+)", re.ASCII
)
_MAX_BYTES = 2**24
"""The size of a message at most; a report has some thousands."""


def cut(token: str, sender: str, message: Any) -> Iterator[str]:
    """Yields the lines of a message.

    Args:
        token: The token of the run, so that nothing else is taken for its answers.
        sender: Who sends it: letters, digits, dots and dashes.
        message: A value of types that JSON knows.
    """
    text = base64.b64encode(zlib.compress(json.dumps(message).encode())).decode()
    parts = [text[start : start + _SIZE] for start in range(0, len(text), _SIZE)]
    for place, part in enumerate(parts, start=1):
        yield f"{_MARK} {token} {sender} {place}/{len(parts)} {part}"


class Joiner:
    """Puts messages together again, in whatever order their lines come."""

    def __init__(self, token: str) -> None:
        """Takes only the lines of the run with that token."""
        self._token = token
        self._parts: dict[str, dict[int, str]] = {}

    def add(self, line: str) -> Any | None:
        """Returns the message that a line completes, or None."""
        found = _LINE.search(line)
        if found is None or found[1] != self._token:
            return None
        parts = self._parts.setdefault(found[2], {})
        parts[int(found[3])] = found[5]
        if len(parts) < int(found[4]):
            return None
        del self._parts[found[2]]
        return _message("".join(parts[place] for place in sorted(parts)))


def _message(text: str) -> Any | None:
    try:
        unpacking = zlib.decompressobj()
        # Bounded, because a few bytes may unpack to very many; `eof` then stays false.
        data = unpacking.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        return parse_json(data) if unpacking.eof else None
    except (ValueError, zlib.error):
        return None
