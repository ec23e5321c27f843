"""Imports torch without taking a card, and forks one or more processes for each part.

    python -m lightning_gaudi.tools.verify.worker DESCRIPTOR

It reads each part to run from its standard input, as a line of JSON. It writes to the descriptor
what the processes of the part report, a line of JSON each, and how they ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
Tell = Callable[[dict[str, Any]], None]
_MAX_LINE = 4000
"""Less than a pipe takes in one piece (4096), so that lines of several processes do not mix."""


def main() -> None:
    """Runs parts until the standard input ends."""
    descriptor = int(sys.argv[1])

    from lightning_gaudi.tools.verify import parts

    _end_with_parent()
    _write(descriptor, {"is": "ready"})
    for line in sys.stdin:
        wanted = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="lightning_gaudi_verify_") as folder:
            pids = [
                _fork(descriptor, parts.PARTS[wanted["part"]], wanted, rank, Path(folder))
                for rank in range(wanted["num_ranks"])
            ]
            _write(descriptor, {"is": "begun", "pids": pids})
            statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        _write(descriptor, {"is": "ended", "statuses": statuses})


def _write(descriptor: int, message: dict[str, Any]) -> None:
    os.write(descriptor, f"{json.dumps(message)}\n".encode()[:_MAX_LINE])


def _end_with_parent() -> None:
    """Makes the kernel end this process when the one that has started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fork(
    descriptor: int,
    part: Callable[[Any, Tell], None],
    wanted: dict[str, Any],
    rank: int,
    folder: Path,
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) != 0:
        return pid
    status = 1
    try:
        _end_with_parent()
        _run(descriptor, part, wanted, rank, folder)
        status = 0
    except BaseException:
        said = traceback.format_exc()
        _write(descriptor, {"is": "failed", "rank": rank, "said": said[-2000:]})
    finally:
        # Without the exit handlers of libraries, some of which hang.
        os._exit(status)


def _run(
    descriptor: int,
    part: Callable[[Any, Tell], None],
    wanted: dict[str, Any],
    rank: int,
    folder: Path,
) -> None:
    from lightning_gaudi.tools.verify.parts import Context

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command takes Ctrl-C, and ends all processes
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    context = Context(rank, wanted["num_ranks"], folder, wanted["options"])
    context.take_card()
    part(context, lambda message: _write(descriptor, {"is": "told", "rank": rank, **message}))


if __name__ == "__main__":
    main()
