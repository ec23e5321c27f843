"""How a report travels over the standard output of a launcher, which mixes many processes' lines.

It is cut into lines short enough to be written in one piece, each with whose it is and its place.
What a launcher puts before a line (mpirun --tag-output, srun --label) does no harm.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

_SIZE = 900  # with what stands before it, well below what a pipe takes at once (4096)
_MARK = "@lightning-gaudi-doctor"
_LINE = re.compile(rf"{_MARK} (\w+) ([\w.-]+) (\d+)/(\d+) (\S+)")


def cut(token: str, sender: str, message: Any) -> Iterator[str]:
    """The lines of a message.

    Args:
        token: Of the run, so that nothing else is taken for its answers.
        sender: Who sends it: letters, digits, dots and dashes.
        message: Of types that JSON knows.
    """
    text = base64.b64encode(zlib.compress(json.dumps(message).encode())).decode()
    parts = [text[start : start + _SIZE] for start in range(0, len(text), _SIZE)]
    for place, part in enumerate(parts, start=1):
        yield f"{_MARK} {token} {sender} {place}/{len(parts)} {part}"


class Joiner:
    """Puts messages together again, whatever the order and the mix of their lines."""

    def __init__(self, token: str) -> None:
        """Take the lines of one run alone."""
        self._token = token
        self._parts: dict[str, dict[int, str]] = {}

    def add(self, line: str) -> Any | None:
        """The message that a line completes, if it does."""
        found = _LINE.search(line)
        if found is None or found[1] != self._token:
            return None
        parts = self._parts.setdefault(found[2], {})
        parts[int(found[3])] = found[5]
        if len(parts) < int(found[4]):
            return None
        text = "".join(parts[place] for place in sorted(parts))
        return json.loads(zlib.decompress(base64.b64decode(text)))
